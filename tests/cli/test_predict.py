"""`saligraft predict`, as typed."""

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.runs import train_tiny

from saligraft.cli import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_tiny(folder)
    return folder


def test_a_folder_of_images(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    for name in ("[b].JPG", "a.png", "in/c.gif"):
        Image.new("RGB", (20, 30), "red").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    assert run(["predict", str(trained), str(tmp_path), "--top", "2", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [Path(row["image"]).name for row in rows] == ["[b].JPG", "a.png", "c.gif"]
    assert rows[1]["predictions"] == rows[2]["predictions"]
    first, second = rows[1]["predictions"]
    assert 1 > first["probability"] >= second["probability"] > 0

    assert run(["predict", str(trained), str(tmp_path / "[b].JPG"), str(tmp_path / "a.png"), "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert "[b].JPG" in shown.replace("\n", "").replace(" ", "")
    assert f"{100 * first['probability']:.1f} %" in shown


def test_mistakes_are_one_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "reliability.png").touch()
    for arguments, words in (
        (["predict", str(trained), str(tmp_path)], "must hold images"),
        (["predict", str(trained), str(trained)], "only pictures that saligraft wrote, in"),
        (["predict", str(trained), "gone.jpg"], "'gone.jpg' does not exist"),
        (["predict", str(tmp_path), str(tmp_path)], "is not a run folder"),
    ):
        assert run(arguments) == 2
        message = capsys.readouterr().err
        assert words in message
        assert message.count("\n") == 1
