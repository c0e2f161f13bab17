"""`saligraft` and `python -m saligraft`: the command line, also for launchers such as `torchrun -m saligraft`."""

import sys


def main() -> None:
    """Start the command line, or name the extra that it needs: the core library is installed without it."""
    try:
        from saligraft.cli import main as start
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("The command line needs `pip install 'saligraft[lab]'`")
    start()


if __name__ == "__main__":
    main()
