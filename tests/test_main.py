"""`python -m saligraft`, as torchrun starts it."""

import subprocess
import sys

from saligraft import __version__


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "saligraft", *arguments], capture_output=True, text=True, check=False)


def test_the_version() -> None:
    done = run_module("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"saligraft {__version__}\n", "")


def test_a_mistake_ends_in_one_line_and_exit_code_2() -> None:
    done = run_module("list", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("saligraft: error: Invalid value for '[TOPIC]': 'nonsense' is not one of 'methods'")
    assert done.stderr.count("\n") == 1
