"""The page of a finished run: its numbers, and its pictures for every method."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.reports.pages import Page, assert_self_contained

from saligraft.methods import REGISTRY, BatchMixer
from saligraft.methods.registry import methods_of
from saligraft.reports import run_report
from saligraft.reports.run_report import ROWS, method_title, run_pictures, write_run_page
from saligraft.training import Result, SilentReporter, make_recipe, train
from saligraft.training.setup import load_split, make_network

CHOICE = {"name": "random-choice", "choices": {"mixup": 0.5, "cutmix": 0.5}, "options": {"per": "sample"}}
TINY: dict[str, Any] = {
    "seed": 7,
    "data": {"options": {"size": 16, "per_class": 4}, "pad": 2},
    "network": {"name": "wrn-10-1"},
    "training": {"epochs": 2, "batch_size": 20, "warmup_epochs": 0},
}


def trained(folder: Path | None = None, **sections: Any) -> Result:
    return train(make_recipe({**TINY, **sections}), folder, reporter=SilentReporter())


def untrained(**sections: Any) -> Result:
    """A result with everything that pictures need."""
    recipe = make_recipe({**TINY, **sections})
    data = load_split(recipe, "test")
    network = make_network(recipe, data)
    return Result(recipe=recipe, summary={}, metrics=(), timing=(), network=network, folder=None, test_data=data)


def page_of(folder: Path) -> Page:
    return assert_self_contained((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return trained(tmp_path_factory.mktemp("run"), title="A <run>", method={"name": "cutmix"})


def test_the_page_shows_result_curve_pairs_and_recipe(finished: Result) -> None:
    assert finished.folder is not None
    write_run_page(finished)
    first = (finished.folder / "report.html").read_bytes()
    write_run_page(finished)
    assert (finished.folder / "report.html").read_bytes() == first
    page = page_of(finished.folder)
    result = json.loads((finished.folder / "result.json").read_text())
    for kind in ("best", "last10_mean", "final"):
        assert f"{result['top1_error'][kind]:.2f} %" in page.text
        assert f"{result['top5_error'][kind]:.2f} %" in page.text
    for words in (
        "A <run>",
        "CutMix : wrn-10-1 on",
        "after 2 epochs",
        "seed 7.",
        'name = "cutmix"',
        "images/s",
        "parameters",
    ):
        assert words in page.text
    assert "1 forward, 1 backward" in page.text
    assert len(page.named("svg")) == 2
    assert len(page.named("article")) == ROWS
    write_run_page(replace(finished, timing=()))
    assert "images/s" not in page_of(finished.folder).text


@pytest.mark.parametrize("method", [*({"name": name} for name in (*methods_of(BatchMixer), "cutout+mixup")), CHOICE])
def test_methods_that_mix_show_pairs(method: dict[str, Any]) -> None:
    result = untrained(method=method)
    before = {name: value.clone() for name, value in result.network.state_dict().items()}
    shown = run_pictures(result)
    assert all(torch.equal(value, before[name]) for name, value in result.network.state_dict().items())
    assert len(shown["rows"]) == ROWS
    uses_saliency = method["name"] in ("saliency-grafting", "attentive-cutmix", "saliencymix", "puzzlemix")
    assert (shown["rows"][0].source_saliency is not None) == uses_saliency
    assert shown["network_maps"] == (uses_saliency and method["name"] != "saliencymix")


@pytest.mark.parametrize("name", ["none", *(name for name in REGISTRY if name not in methods_of(BatchMixer))])
def test_other_methods_show_the_data(name: str) -> None:
    shown = run_pictures(untrained(method={"name": name}))
    assert len(shown["strips"]) == 10
    assert "rows" not in shown


@pytest.mark.parametrize("name", ["saliency-grafting", "cutout"])
def test_a_run_that_never_mixes_shows_the_data_and_says_so(name: str, tmp_path: Path) -> None:
    training = {"epochs": 1, "batch_size": 20, "warmup_epochs": 1}
    with pytest.warns(UserWarning, match="the run never mixes"):
        result = trained(tmp_path, method={"name": name}, training=training)
    write_run_page(result)
    page = page_of(tmp_path)
    assert "seed 7. No image was mixed: all epochs were warm-up." in page.text
    assert not page.named("article")
    assert "used for training" not in page.text


@pytest.mark.parametrize("method", ["none", "saliency-grafting"])
def test_unusual_class_names_do_not_keep_a_run_from_its_page(method: str, tmp_path: Path) -> None:
    names = ["a · b", "caf\udce9", '"<i>', "new\nline"]
    for number, name in enumerate(names * 5):
        path = tmp_path / "data" / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((16, 16), 50).convert("RGB").save(path)
    data = {"name": f"folder:{tmp_path / 'data'}", "options": {"size": 16, "test_share": 0.5}}
    training = {"epochs": 1, "batch_size": 4, "warmup_epochs": 0}
    result = trained(tmp_path / "run", data=data, method={"name": method}, training=training)
    with pytest.warns(UserWarning, match=r"report.html holds names that are not UTF-8"):
        write_run_page(result)
    page = page_of(tmp_path / "run")
    assert all(words in page.text for words in ("caf\\udce9", "How it was run"))


@pytest.mark.parametrize(("broken", "sections"), [("run_pictures", 3), ("write_page", 0)])
def test_a_page_that_fails_is_a_warning(
    broken: str, sections: int, finished: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no\nink")

    assert finished.folder is not None
    (finished.folder / "report.html").unlink(missing_ok=True)
    monkeypatch.setattr(run_report, broken, fail)
    with pytest.warns(UserWarning, match=r"the run is finished, but .*report.html could not be created: no ink"):
        write_run_page(finished)
    page = finished.folder / "report.html"
    assert (page.read_text(encoding="utf-8").count("<section>") if page.is_file() else 0) == sections


def test_nothing_is_written_without_a_folder_or_by_other_processes(
    finished: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished.folder is not None
    (finished.folder / "report.html").unlink(missing_ok=True)
    write_run_page(untrained())
    monkeypatch.setenv("RANK", "1")
    write_run_page(finished)
    assert not (finished.folder / "report.html").exists()


def test_methods_have_readable_titles() -> None:
    assert method_title("none") == "Plain training"
    assert method_title("saliency-grafting") == "Saliency Grafting"
    assert not [title for title in map(method_title, REGISTRY) if "-" in title or title.islower()]
