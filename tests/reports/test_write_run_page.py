"""The page of a finished run: written by its callers, and never a reason for the run to fail."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saligraft.reports.run_report import write_run_page
from saligraft.training import Result, SilentReporter, make_recipe, train

TABLE: dict[str, Any] = {
    "data": {"name": "shapes", "options": {"size": 16, "per_class": 2}, "pad": 2},
    "network": {"name": "wrn-10-1"},
    "training": {"epochs": 1, "batch_size": 10},
}


def run(table: dict[str, Any], folder: Path | None) -> Result:
    return train(make_recipe(table), folder, reporter=SilentReporter())


def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:the run never mixes")
def test_a_run_that_never_mixes_says_so(tmp_path: Path) -> None:
    training = {**TABLE["training"], "warmup_epochs": 1}
    write_run_page(run({**TABLE, "method": {"name": "saliency-grafting"}, "training": training}, tmp_path))
    assert "No image was mixed: all epochs were warm-up." in page(tmp_path)
    assert "trained with" not in page(tmp_path)


@pytest.mark.parametrize("method", ["none", "cutmix", "saliency-grafting"])
def test_odd_class_names_do_not_keep_a_run_from_its_page(method: str, tmp_path: Path) -> None:
    names = ["a · b", "caf\udce9", "<i>", "new\nline"]
    for number, name in enumerate(names * 5):
        path = tmp_path / "data" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 50).convert("RGB").save(path)
    data = {"name": f"folder:{tmp_path / 'data'}", "options": {"size": 16, "test_share": 0.5}}
    result = run(
        {**TABLE, "data": data, "method": {"name": method}, "training": {"epochs": 1, "batch_size": 4}},
        tmp_path / "run",
    )
    with pytest.warns(UserWarning, match=r"report.html holds names that are not UTF-8"):
        write_run_page(result)
    assert page(tmp_path / "run").endswith("</html>\n")
    assert all(word in page(tmp_path / "run") for word in ("caf\\udce9", "How it was run"))


def test_a_page_that_fails_is_a_warning(tmp_path: Path) -> None:
    result = run(TABLE, tmp_path)
    broken: Any = dataclasses.replace(result, test_data=None)
    with pytest.warns(UserWarning, match=r"the run is finished, but the pictures of report.html could not be made"):
        write_run_page(broken)
    assert page(tmp_path).count("<section>") == 3
    (tmp_path / "report.html").unlink()
    (tmp_path / "report.html").mkdir()
    with pytest.warns(UserWarning, match=r"the run is finished, but report.html could not be made"):
        write_run_page(result)


def test_without_a_folder_or_in_another_process_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(TABLE, None)
    write_run_page(result)
    monkeypatch.setenv("RANK", "1")
    write_run_page(dataclasses.replace(result, folder=tmp_path))
    assert list(tmp_path.iterdir()) == []
