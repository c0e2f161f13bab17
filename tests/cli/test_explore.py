"""`saligraft explore`: one page from shapes, from a user's files, or with a run's network."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image
from tests.reports.pages import assert_self_contained
from tests.runs import train_tiny

from saligraft.cli import run


def explore(out: Path, *words: str) -> int:
    return run(["explore", "--out", str(out), *words])


def data_of(page: Path) -> dict:
    html = page.read_text(encoding="utf-8")
    assert_self_contained(html)
    found = re.search(r'id="x-data">(.*?)</script>', html, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_shapes_have_true_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "new" / "e.html"
    assert explore(page.with_suffix(""), "--network", "wrn-10-1", "--size", "32", "--count", "5") == 0
    assert capsys.readouterr().out == f"{page}\n"
    data = data_of(page)
    assert len({image["name"] for image in data["images"]}) == 5
    assert all(image["object"] for image in data["images"])
    assert len(data["puzzle"]["pairs"]) == 20


def test_own_files_are_seen_by_the_network_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny(tmp_path / "run")
    for name, colour in (("cat.png", "red"), ("dog.png", "blue")):
        Image.new("RGB", (40, 30), colour).save(tmp_path / name)
    files = [str(tmp_path / name) for name in ("cat.png", "dog.png")]
    assert explore(tmp_path / "e.html", "--images", *files, "--run", str(tmp_path / "run"), "--size", "24") == 0
    data = data_of(tmp_path / "e.html")
    assert [image["name"] for image in data["images"]] == ["cat", "dog"]
    assert (data["height"], data["images"][0]["object"]) == (24, None)
    assert "trained for 1 epoch" in data["origin"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "1"], "--count must be >= 2, got 1"),
        (["--size", "4"], "--size must be >= 8, got 4"),
        (["--root", "x"], "--root must be left out without --data"),
        ([".", "--data", "shapes"], "give image files or --data, not both"),
        (["--network", "wrn-10-1", "--run", "x"], "give --network or --run, not both"),
        (["--out", "."], "--out must be the file to write, got the folder"),
    ],
)
def test_mistakes_end_in_one_line(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert explore(tmp_path / "e.html", *words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
