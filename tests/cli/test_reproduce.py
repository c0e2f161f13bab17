"""`saligraft reproduce` as a user types it. Everything at once: `saligraft reproduce all --scale smoke`."""

from pathlib import Path

import pytest

from saligraft.cli import run
from saligraft.experiments.experiment import Job
from saligraft.experiments.paper import EXPERIMENTS


@pytest.mark.slow
def test_a_table_and_a_figure_end_to_end(tmp_path: Path, capsys) -> None:
    command = ["reproduce", "table-saliency", "figure-samples", "--scale", "smoke", "--out", str(tmp_path)]
    assert run([*command, "--seeds", "2", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "8 runs, 0 of them finished" in printed
    table = (tmp_path / "table-saliency" / "table.md").read_text(encoding="utf-8")
    for words in ("Saliency Grafting by CAM", "15.70", "3.54", "4×4", "equal passes", "not resolved"):
        assert words in table
    assert (tmp_path / "figure-samples" / "methods.png").is_file()
    for name in ("table-saliency", "figure-samples"):
        assert 'id="explorer"' in (tmp_path / name / "report.html").read_text(encoding="utf-8")
    assert run([*command, "--seeds", "2"]) == 0  # nothing is trained again
    assert "8 runs, 8 of them finished" in capsys.readouterr().out
    assert run(["reproduce", "table-saliency", "--list", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert "8 of 8" in " ".join(capsys.readouterr().out.split())


def test_the_list_names_everything_with_its_cost(tmp_path: Path, capsys) -> None:
    assert run(["reproduce", "--list", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in EXPERIMENTS:
        assert name in printed
    assert "60 runs, 24,000 epochs" in " ".join(printed.split())  # Table 3: 10 rows, 2 weight decays, 3 seeds
    assert "0 of 33" in " ".join(printed.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name an experiment, or all"),
        (["table-one"], "experiment must be one of"),
        (["table-wrn", "--scale", "large"], "'--scale': 'large' is not one of"),
        (["table-wrn", "--launcher", "cloud"], "'--launcher': 'cloud' is not one of"),
        (["table-wrn", "--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["table-wrn", "--jobs", "0"], "--jobs must be >= 1, got 0"),
        (["table-wrn", "--gpus", "-1"], "--gpus must be >= 0, got -1"),
        (["table-wrn", "--partition", "gpu"], "--partition must be left out without --launcher slurm, got gpu"),
        (["table-wrn", "--gpus", "0"], "--gpus must be left out without --launcher slurm, got 0"),
        (["table-wrn", "--minutes", "9"], "--minutes must be left out without --launcher slurm, got 9"),
        (["table-wrn", "--methods", "none,cutmx"], "got 'cutmx'; did you mean 'cutmix'?"),
        (["table-wrn", "table-speech", "--methods", "augmix"], "--methods of table-speech must be one of"),
        (["table-wrn", "--set", "training.epochs=x"], "training.epochs"),
        (["table-wrn", "--set", "seed=3"], "--set seed must be left out: --seeds N trains the seeds 0 to N - 1"),
        (
            ["figure-temperature", "--set", "method.options.temperature=1"],
            "left out: figure-temperature sets it in its",
        ),
        (
            ["table-tiny", "--methods", "none", "--set", "training.epochs=1"],
            "Saliency Grafting: shapes-wrn-10-2: training.warmup_epochs",
        ),
        (["table-wrn", "--data-root", "no/such/folder"], "no/such/folder"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(tmp_path: Path, capsys, arguments: list[str], words: str) -> None:
    assert run(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err
    assert not (tmp_path / "out").exists()


def test_out_must_be_a_folder(tmp_path: Path, capsys) -> None:
    (tmp_path / "out").write_text("")
    for command in (["table-wrn", "--scale", "smoke"], ["--list"]):
        assert run(["reproduce", *command, "--out", str(tmp_path / "out")]) == 2
        assert "--out must be a folder, got the file" in capsys.readouterr().err


def test_failures_are_counted_by_folder(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(jobs: list[Job], _: object) -> dict[Path, str]:
        return {job.folder: "no" for job in jobs}

    monkeypatch.setattr("saligraft.experiments.runner.run_jobs", fail)
    names = ["table-wrn", "table-saliency"]  # which share runs
    assert run(["reproduce", *names, "--scale", "smoke", "--seeds", "1", "--out", str(tmp_path)]) == 2
    failed, of, count, *_ = capsys.readouterr().err.removeprefix("saligraft: error: ").split()
    assert (failed, of) == (count, "of")


def test_slurm_is_needed_where_it_is_asked_for(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))  # without srun
    command = ["reproduce", "table-wrn", "--scale", "smoke", "--seeds", "1", "--launcher", "slurm"]
    assert run([*command, "--out", str(tmp_path / "out")]) == 2
    assert "--launcher slurm needs a machine with Slurm: " in capsys.readouterr().err
