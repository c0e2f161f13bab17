"""`python -m saligraft`: the command line, also for launchers such as `torchrun -m saligraft`."""

from saligraft.cli import main

if __name__ == "__main__":
    main()
