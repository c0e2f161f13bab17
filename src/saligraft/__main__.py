"""`saligraft` and `python -m saligraft`: the command line, also for launchers such as `torchrun -m saligraft`."""

import sys

from saligraft.import_path import install_command


def main() -> None:
    """Start the command line, or name the extra that it needs: the core library is installed without it."""
    try:
        from saligraft.cli import main as start
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print(f"The command line needs {install_command('lab')}", file=sys.stderr)
        sys.exit(2)
    start()


if __name__ == "__main__":
    main()
