"""`saligraft evaluate` prints a run's final numbers, and those under occlusion."""

import json
from pathlib import Path

import pytest
from tests.runs import train_tiny

from saligraft.cli import run


def test_the_final_numbers_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert run(["evaluate", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"top-1 error  {result['top1_error']['final']:.2f} %" in shown
    assert f"top-5 error  {result['top5_error']['final']:.2f} %" in shown
    assert f"test loss    {result['test_loss']:.4f}" in shown

    assert run(["evaluate", str(tmp_path / "run"), "--set", "data.options.seed=1"]) == 0
    assert capsys.readouterr().out != shown

    assert run(["evaluate", str(tmp_path / "run"), "--occlude", "12.5", "--occlude", "25", "--occlude", "12.5"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "hidden"
    assert [row.split()[:3] for row in rows] == [["0", "%", "0/64"], ["12.5", "%", "8/64"], ["25", "%", "16/64"]]
    assert f"{result['top1_error']['final']:.2f} %" in rows[0]
    assert len({len(row) for row in (head, *rows)}) == 1

    assert run(["evaluate", str(tmp_path / "run"), "--occlude", "101"]) == 2
    assert "--occlude must lie in [0, 100], got 101" in capsys.readouterr().err
    assert run(["evaluate", str(tmp_path / "run"), "--reference", str(tmp_path / "run")]) == 2
    assert "--reference needs --occlude" in capsys.readouterr().err

    (tmp_path / "run" / "model.safetensors").unlink()
    assert run(["evaluate", str(tmp_path / "run")]) == 2
    assert "holds no model.safetensors" in capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = {"options": {"size": 16, "per_class": 3}, "pad": 2}
    out = tmp_path_factory.mktemp("evaluate") / "run"
    train_tiny(out, data=data, method={"name": "saliency-grafting"}, training={"epochs": 2, "batch_size": 15})
    return out


def test_all_evaluations_at_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--localization", "--calibration", "--classes", "--corruptions", "--label-truth", "--through-training"]
    predictions = tmp_path / "predictions.csv"
    assert run(["evaluate", str(folder), *flags, "--occlude", "25", "--predictions", str(predictions)]) == 0
    shown = capsys.readouterr().out
    kept = json.loads((folder / "evaluation.json").read_text())
    assert list(kept) == ["occlusion", "localization", "label-truth", "calibration", "classes", "corruptions"]
    result = json.loads((folder / "result.json").read_text())
    assert kept["occlusion"]["percent"]["0"]["top1_error"] == result["top1_error"]["final"]
    assert f"localization accuracy  {kept['localization']['accuracy']:6.2f} %" in shown
    assert "map 4 x 4" in shown
    assert f"expected calibration error  {kept['calibration']['ece']:6.2f} %   15 bins" in shown
    assert f"mean corruption error {kept['corruptions']['mean']:.2f} %, clean error" in shown
    assert len(kept["corruptions"]["errors"]) >= 10
    assert kept["corruptions"]["clean"] == result["top1_error"]["final"]
    assert kept["classes"]["images"] == [3] * 10
    assert sum(kept["classes"]["errors"]) / 10 == pytest.approx(result["top1_error"]["final"])
    tables = shown[shown.index("label truth") : shown.index("chosen cells.")]
    assert max(map(len, tables.splitlines())) <= 80
    assert list(kept["label-truth"]["epochs"]) == ["1", "2"]
    assert kept["label-truth"]["epochs"]["2"] == kept["label-truth"]["methods"]
    assert "after epoch 1" in shown
    for name in ("reliability.png", "confusion.csv", "confusion.png"):
        assert (folder / name).is_file()
        assert str(folder / name) in shown
    assert len(predictions.read_text().splitlines()) == 31

    assert run(["evaluate", str(folder), "--calibration", "--set", "data.options.seed=1"]) == 0
    later = json.loads((folder / "evaluation.json").read_text())
    assert later["calibration"]["set"] == ["data.options.seed=1"]
    assert later["calibration"]["ece"] != kept["calibration"]["ece"]
    assert later["localization"] == kept["localization"]


def test_results_go_to_another_folder(folder: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert run(["evaluate", str(folder), "--classes", "--out", str(tmp_path / "a" / "b")]) == 0
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {
        "evaluation.json",
        "confusion.csv",
        "confusion.png",
    }
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_plain_evaluation_writes_nothing(folder: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    assert run(["evaluate", str(folder)]) == 0
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before


def test_runs_below_a_folder_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "group" / "run"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").touch()
    for above in (folder.parent, tmp_path):
        assert run(["evaluate", str(above)]) == 2
        assert f"{above} is not a run folder: it holds no recipe.toml; runs below it: " in (
            message := capsys.readouterr().err
        )
        assert str(folder) in message


def test_mistakes_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(folder), "--through-training"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--through-training needs --label-truth" in error


def test_places_that_cannot_be_written_are_refused_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for flag, place, message in (
        ("--out", file, f"--out must be a folder, got the file {file}"),
        ("--out", file / "a", f"--out must be in a folder, got {file / 'a'} below the file {file}"),
        ("--predictions", tmp_path, f"--predictions must be the file to write, got the folder {tmp_path}"),
    ):
        assert run(["evaluate", str(folder), flag, str(place)]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"saligraft: error: {message}\n")


def test_top_5_is_left_out_where_it_is_always_0(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny = ["data.classes=5", "data.options.size=16", "data.options.per_class=4", "data.pad=2", "network.name=wrn-10-1"]
    words = [word for text in (*tiny, "training.epochs=1", "training.batch_size=20") for word in ("--set", text)]
    folder = tmp_path / "run"
    assert run(["train", "shapes-wrn-10-2", *words, "--out", str(folder)]) == 0
    assert run(["evaluate", str(folder)]) == 0
    assert run(["evaluate", str(folder), "--occlude", "25"]) == 0
    captured = capfd.readouterr()
    shown = captured.out + captured.err + (folder / "report.html").read_text(encoding="utf-8")
    assert "top-1 error" in captured.err
    assert "top-5" not in shown.lower()
    assert json.loads((folder / "result.json").read_text())["top5_error"]["final"] == 0
    lines = captured.out[captured.out.index("hidden") :].splitlines()
    assert len({len(line) for line in lines}) == 1
