"""`python -m saligraft`: the command line, for `torchrun -m saligraft` and friends."""

from saligraft.cli import main

if __name__ == "__main__":
    main()
