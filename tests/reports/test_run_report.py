"""The page of a single run, from its folder alone."""

import json
from pathlib import Path

import pytest
from tests.reports.pages import assert_self_contained

from saligraft.methods import REGISTRY
from saligraft.reports.run_report import method_title, write_run_report


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    error = {"best": 31.25, "last10_mean": 35.5, "final": 32.75}
    result = {
        "top1_error": error, "top5_error": {"best": 3.0, "last10_mean": 4.0, "final": 3.5}, "epochs": 2,
        "parameters": 12345, "seed": 7, "method": "cutmix", "data": "shapes", "network": "wrn-10-2",
    }  # fmt: skip
    (tmp_path / "result.json").write_text(json.dumps(result))
    lines = [{"epoch": e, "top1_error": 60.0 - e, "top5_error": 20.0 - e} for e in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "recipe.toml").write_text('title = "A run"\n[method]\nname = "cutmix"\n')
    times = [{"machine": {"cores": 2}}, *({"epoch": e, "seconds": 2.0, "images_per_second": 500.0} for e in (1, 2))]
    (tmp_path / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
    return tmp_path


def test_the_report_holds_result_recipe_and_time(folder: Path) -> None:
    path = write_run_report(folder)
    assert path == folder / "report.html"
    page = assert_self_contained(path.read_text(encoding="utf-8"))
    for words in (
        "A run",
        "31.25 %",
        "35.50 %",
        "32.75 %",
        "3.50 %",
        "seed 7",
        "12,345",
        'name = "cutmix"',
        "500 images/s",
    ):
        assert words in page.text
    assert len(page.with_class("mean")) == 4


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "recipe.toml"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"must hold {name}"):
        write_run_report(str(folder))


def test_times_are_optional(folder: Path) -> None:
    (folder / "timing.jsonl").unlink()
    assert "images/s" not in write_run_report(folder).read_text(encoding="utf-8")


def test_methods_have_readable_titles() -> None:
    assert method_title("none") == "Plain training"
    assert method_title("saliency-grafting") == "Saliency Grafting"
    assert not [title for title in map(method_title, REGISTRY) if "-" in title or title.islower()]


def test_a_note_stands_in_the_lead(folder: Path) -> None:
    page = assert_self_contained(write_run_report(folder, note="Mind <this>.").read_text(encoding="utf-8"))
    assert "seed 7. Mind <this>." in page.text
