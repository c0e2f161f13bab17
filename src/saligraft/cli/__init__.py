"""The command line: `saligraft COMMAND`, one file per command.

A user's mistake prints one line on stderr and exits with code 2. So does a bug that raises an error of the same types,
such as a TypeError; with the environment variable SALIGRAFT_TRACEBACK set, both show their traceback. If the output
pipe closes (`| head`), the command still finishes and returns its usual exit code.
Each command imports what it needs when it runs, so that `--help` does not wait for slow imports.
"""

import difflib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from saligraft import __version__
from saligraft.cli.bench import bench
from saligraft.cli.compare import compare
from saligraft.cli.demo import demo
from saligraft.cli.doctor import doctor
from saligraft.cli.evaluate import evaluate
from saligraft.cli.explore import explore
from saligraft.cli.export import export
from saligraft.cli.list import list_choices
from saligraft.cli.match_temperature import match_temperature
from saligraft.cli.predict import predict
from saligraft.cli.reproduce import reproduce
from saligraft.cli.show import show
from saligraft.cli.train import train
from saligraft.io.streams import unbreakable
from saligraft.names import one_line

TRACEBACK_VARIABLE = "SALIGRAFT_TRACEBACK"
EXPECTED = {  # pydantic's kind of error → what an option must be
    "greater_than_equal": ">= {ge}",
    "less_than_equal": "<= {le}",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells count it

app = typer.Typer(
    name="saligraft",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"saligraft {__version__}")
        raise typer.Exit


def _help_of(command: Callable[..., None]) -> str:
    """The command's docstring with each paragraph on one line, so that the terminal wraps it to its width.

    What an example does becomes a comment of the shell, so that the entire line can be pasted.
    """
    paragraphs = (" ".join(part.splitlines()) for part in (inspect.getdoc(command) or "").split("\n\n"))
    return "\n\n".join(re.sub(r"^(\[bold\].*?\[/bold\]) +", r"\1   # ", paragraph) for paragraph in paragraphs)


def saligraft(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  (its callback does the work)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Saliency Grafting (Park et al., AAAI 2022): train with it, compare it, visualise it.

    Examples:

    [bold]saligraft demo[/bold]   plain training, CutMix and Saliency Grafting side by side, with a page, in minutes

    [bold]saligraft show[/bold]   pictures of what the method does

    [bold]saligraft list[/bold]   the available methods, networks, data sets and recipes

    [bold]saligraft train shapes-wrn-10-2-saliency-grafting[/bold]   one run of one recipe
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


app.callback(invoke_without_command=True, help=_help_of(saligraft))(saligraft)


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "show": show,
    "explore": explore,
    "compare": compare,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "reproduce": reproduce,
    "bench": bench,
    "match-temperature": match_temperature,
    "list": list_choices,
    "doctor": doctor,
}


for _name, _command in COMMANDS.items():
    app.command(_name, help=_help_of(_command))(_command)


def _users_mistake(error: Exception) -> str | None:
    """One line that says what to fix, or None for a bug of the program."""
    checked: Any = error.__cause__  # by pydantic, in recent versions of typer
    if isinstance(error, typer.BadParameter) and error.param is not None and hasattr(checked, "errors"):
        detail = checked.errors()[0]
        if detail["type"] in EXPECTED:
            expected = EXPECTED[detail["type"]].format(**detail.get("ctx", {}))
            return f"{error.param.opts[-1]} must be {expected}, got {detail['input']}"
    if hasattr(error, "format_message"):  # errors of typer and click
        message = one_line(error.format_message().replace("Value error, ", ""))
        choice = re.search(r"'([^']*)' is not one of (.*)\.$", message)
        near = difflib.get_close_matches(choice[1], re.findall(r"'([^']*)'", choice[2]), n=1) if choice else ()
        return message + "".join(f" Did you mean {name!r}?" for name in near)
    if isinstance(error, (ValueError, TypeError, OSError, ImportError)):
        return one_line(error)
    return None


def _show_warning(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """Print our warnings as one line, those of other packages as Python does."""
    if category is UserWarning and "saligraft" in Path(str(place[0])).parts:
        print(f"saligraft: warning: {one_line(message)}", file=sys.stderr)
    else:
        _shown_by_python(message, category, *place, **more)  # type: ignore[arg-type]


_shown_by_python = warnings.showwarning


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command. With the environment variable SALIGRAFT_TRACEBACK set, a mistake shows its traceback.

    Args:
        arguments: What follows `saligraft` on the command line; None for the program's own arguments.

    Returns:
        Exit code: 0, 2 after a user's mistake, 128 plus the number of a signal.
    """
    try:
        code = app(arguments, prog_name="saligraft", standalone_mode=False)
        if code == INTERRUPTED:  # after Ctrl-C some versions of typer return this code, others raise Abort
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except SystemExit as ended:  # a command has already printed its message
        return ended.code if isinstance(ended.code, int) else 1
    except (KeyboardInterrupt, typer.Abort):
        print("saligraft: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        message = _users_mistake(error)
        if message is None or os.environ.get(TRACEBACK_VARIABLE):
            raise
        if not getattr(error, "reported_elsewhere", False):  # by another of several processes
            print(f"saligraft: error: {message}", file=sys.stderr)
        return 2


def main() -> None:
    """Entry point of the `saligraft` script."""
    sys.stdout, sys.stderr = unbreakable(sys.stdout, BrokenPipeError), unbreakable(sys.stderr)
    warnings.showwarning = _show_warning
    code = run()
    if os.environ.get("WORLD_SIZE", "") not in ("", "1"):
        # gloo's threads may not have released their last tensors yet; one that does so while the interpreter finalizes
        # aborts the process (pytorch/pytorch#190489), and the launcher then kills the others.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(code)
    sys.exit(code)
