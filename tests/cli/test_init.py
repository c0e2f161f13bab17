"""The command line's frame: help, version, and mistakes reported in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saligraft
from saligraft import cli


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_has_worked_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "Examples:" in shown
    examples = [line for line in shown.partition("Examples:")[2].splitlines() if line.strip().startswith("saligraft ")]
    assert len(examples) >= 2
    text = " ".join(shown.partition("Examples:")[2].split())
    assert text.count("# ") >= len(examples)  # each line is one that a shell can run


def test_every_file_of_the_folder_is_a_command() -> None:
    files = {file.stem.replace("_", "-") for file in Path(cli.__file__).parent.glob("*.py")} - {"--init--"}
    assert files == set(cli.COMMANDS)


def test_mistakes_fail_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "all" / "one").mkdir(parents=True)
    for name in ("recipe.toml", "run.json"):
        (tmp_path / "all" / "one" / name).write_text("")
    (tmp_path / "finished").mkdir()
    for name in ("recipe.toml", "result.json"):
        (tmp_path / "finished" / name).write_text("")
    (tmp_path / "one.jpg").write_text("")
    expected = {
        "--help": 0, "train --help": 0, "--version": 0, "list recipes": 0, "trian": 2, "train --sede 1": 2,
        "train nowhere": 2, "train shapes-wrn-10-2 --set epochs": 2, "train all/one": 2, "evaluate all": 2,
        "list colours": 2, "demo --scale large": 2, "reproduce all --seeds 0": 2,
        "export all/one --format onx": 2, "predict all/one gone.jpg": 2, "predict all all": 2,
        "show --images gone.jpg": 2, "explore gone.jpg": 2, "explore --run gone": 2, "compare all/one gone": 2,
        "train shapes-wrn-10-2 --method cutmx": 2, "train shapes-wrn-10-2 --out all/one": 2,
        "train shapes-wrn-10-2 --set method.name=cutmx": 2, "train shapes-wrn-10-2 --set epochs=3": 2,
        "train shapes-wrn-10-2 --set training.epoch=3": 2, "train shapes-wrn-10-2 --set training.trackers=wandb": 2,
        "train shapes-wrn-10-2 --set method.choices.cutmx=1": 2, "train shapes-wrn-10-2 --set training.epochs=x": 2,
        "show --method cutmx": 2, "show --images one.jpg": 2, "explore one.jpg": 2, "reproduce tabel-wrn": 2,
        "train runs/nope --resume": 2, "train shapes-wrn-10-2 --best-of optimizer.lr --plan": 2,
        "train shapes-wrn-10-2 --seeds 0,1": 2, "train shapes-wrn-10-2 --best-of optimizer.lr=0.1,0.2 --seeds 0,x": 2,
        "train shapes-wrn-10-2 --set data.name=cifar1000": 2, "train shapes-wrn-10-2 --set network.name=wrn-10-x": 2,
        "train shapes-wrn-10-2 --set schedule.name=cosin": 2, "match-temperature gone": 2, "compare finished": 2,
        "match-temperature finished --k 6 --temperature 0.1": 2, "match-temperature finished --set data.nam=x": 2,
        "evaluate finished --set data.nam=x": 2, "show --methods mixup,cutmx": 2, "show --network resnet18": 2,
        "bench step": 2, "reproduce": 2, "reproduce --list --out one.jpg": 2,
    }  # fmt: skip
    program = "import json, sys; from saligraft import cli; "
    program += "codes = {words: (cli.run(words.split()), 'torch' in sys.modules) for words in sys.argv[1:]}; "
    program += "print(json.dumps(codes))"
    command = [sys.executable, "-c", program, *expected]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(ended.stdout.splitlines()[-1]) == {words: [code, False] for words, code in expected.items()}


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"saligraft {saligraft.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "trian"),
        (["train"], "RECIPE"),
        (["list", "recipe"], "'schedules', 'settings'. Did you mean 'recipes'?\n"),
        (["train", "shapes-wrn-10-2", "--sede", "1"], "--sede"),
        (["train", "shapes-wrn-10-2", "--seed", "one"], "--seed must be a whole number, got one\n"),
        (["train", "nowhere.toml"], "bundled recipe 'nowhere.toml'; all "),
        (
            ["train", "shapes-wrn-10-2", "--set", "training.epochs=soon"],
            "training.epochs must be a valid integer, got 'soon'",
        ),
        (["train", "shapes-wrn-10-2", "--set", "network.nmae=x"], "unknown key 'nmae'; valid: name, options"),
        (["train", "shapes-wrn-10-2", "--set", "network.nmae=x"], "; did you mean 'name'?\n"),
        (["train", "shapes-wrn-10-2", "--set", "epochs=3"], "; did you mean training.epochs?\n"),
        (["train", "shapes-wrn-10-2", "--set", "method.name=cutmx"], "; did you mean 'cutmix'?\n"),
        (
            ["train", "shapes-wrn-10-2", "--set", "training.trackers=wandb"],
            """--set 'training.trackers=["wandb"]', got 'wandb'""",
        ),
        (["train", "shapes-wrn-10-2", "--set", "data.name=folder:photos"], "such as photos/cats/1.jpg"),
        (["train", "shapes-wrn-10-2", "--set", "method.options.T=1"], "method none has no option 'T'"),
        (["train", "shapes-wrn-10-2", "--set", "network.name=wrn-11-2", "--out", "OUT"], "depth must be 6n + 4"),
        (["evaluate", "nowhere"], "no run folder nowhere"),
        (["list", "colours"], "'colours' is not one of 'methods', "),
        (["train", "shapes"], "'shapes'; similar: shapes-pyramidnet-20-24, shapes-wrn-10-2; all"),
        (["train", "shapes-wrn-10-2", "--set", "schedule.name=cosin"], "got 'cosin'; did you mean 'cosine'?\n"),
        (
            ["train", "shapes-wrn-10-2", "--set", "data.name=cifar1000"],
            "[data.name] data set must be one of 'shapes', ",
        ),
        (["train", "shapes-wrn-10-2", "--set", "network.name=wrn-10-x"], "where DEPTH and WIDTH are integers, got "),
        (["show", "--methods", "cutmx"], "; did you mean 'cutmix'?\n"),
        (["bench", "step"], "; did you mean 'steps'?\n"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "run") if argument == "OUT" else argument for argument in arguments]
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("saligraft: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize(
    "error", [ValueError("bad\n  thing"), TypeError("bad thing"), FileNotFoundError(2, "bad thing")]
)
def test_errors_of_commands_are_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert cli.run([]) == 2
    assert "bad thing" in capsys.readouterr().err
    monkeypatch.setenv(cli.TRACEBACK_VARIABLE, "1")
    with pytest.raises(type(error)):
        cli.run([])


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(KeyError):
        cli.run([])


def test_ctrl_c_exits_130_with_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("saligraft.training.train", interrupt)
    assert cli.run(["train", "shapes-wrn-10-2"]) == 130
    assert capsys.readouterr().err == "saligraft: interrupted\n"


def test_python_m_saligraft_is_the_same_command(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "saligraft", "train", "missing.toml"],
        capture_output=True, text=True, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("saligraft: error: no recipe file or bundled recipe 'missing.toml'")
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_does_not_fail_the_command() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["--version"], ["list", "methods"], ["--help"]):
        command = [sys.executable, "-m", "saligraft", *arguments]
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
    os.close(writer)


def test_one_of_several_processes_ends_without_finalizing_python(tmp_path: Path) -> None:
    """Threads of torch that still need the interpreter would abort it then; its output must not be lost."""
    script = "import atexit; atexit.register(print, 'finalizing'); from saligraft.cli import main; main()"
    ends = []
    runs = ("", ["--version"]), ("1", ["--version"]), ("2", ["--version"]), ("2", ["train", "nothing"])
    for processes, arguments in runs:
        with (tmp_path / "output").open("w+") as output:  # not a terminal, so it is buffered
            done = subprocess.run(
                [sys.executable, "-c", script, *arguments],
                env={**os.environ, "WORLD_SIZE": processes}, stdout=output, stderr=output, check=False,
            )  # fmt: skip
            output.seek(0)
            *lines, last = output.read().splitlines()
            ends.append((done.returncode, last if last == "finalizing" else last.split()[0], len(lines)))
    assert ends == [*[(0, "finalizing", 1)] * 2, (0, "saligraft", 0), (2, "saligraft:", 0)]


def test_our_warnings_are_one_line_and_others_are_python_s(capsys: pytest.CaptureFixture[str]) -> None:
    cli._show_warning(UserWarning("two\nlines"), UserWarning, cli.__file__, 3)
    assert capsys.readouterr().err == "saligraft: warning: two lines\n"
    with pytest.warns(UserWarning, match="theirs"):
        cli._show_warning(UserWarning("theirs"), UserWarning, "elsewhere.py", 3)
