"""What is written of a scene: the files, and what their pages say."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from tests.reports.pages import assert_self_contained

from saligraft.data import load
from saligraft.experiments.show import choose, untrained_network
from saligraft.experiments.show_pages import ROWS, ROWS_OF_METHODS, Scene, comparison_writer, gallery_writer
from saligraft.methods import Mixup, SaliencyGrafting


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    pool = choose(load("shapes", split="test", per_class=2), 20, seed=0)
    return Scene(pool=pool, lens=untrained_network("wrn-10-1", pool, seed=0), out=tmp_path, rows=None, seed=0)


def test_a_gallery_has_six_pairs_unless_told_otherwise(scene: Scene) -> None:
    picture, html = gallery_writer("saliency-grafting", SaliencyGrafting())(scene)
    with Image.open(picture) as shown:
        shown.load()
    page = assert_self_contained(html.read_text(encoding="utf-8"))
    assert len([tag for tag, _ in page.tags if tag == "article"]) == ROWS
    assert f"The saliency is that of {scene.lens.describe()}" in page.text


def test_a_method_without_saliency_speaks_of_none(scene: Scene) -> None:
    _, html = gallery_writer("mixup", Mixup())(replace(scene, rows=1))
    assert "The saliency is that of" not in html.read_text(encoding="utf-8")


def test_a_comparison_has_four_pairs_and_a_picture_per_method_where_asked_for(scene: Scene, tmp_path: Path) -> None:
    written = comparison_writer("mixup, cutmix", tmp_path / "cards")(scene)
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert names[:2] == ["methods.png", "methods.html"]
    assert set(names[2:]) == {"cards/mixup.png", "cards/cutmix.png"}
    page = assert_self_contained(written[1].read_text(encoding="utf-8"))
    assert len(page.with_class("compared")) == ROWS_OF_METHODS
    assert "the network knows others" not in page.text


def test_a_network_of_other_classes_is_said_to_be_one(scene: Scene) -> None:
    stranger = replace(scene, lens=replace(scene.lens, classes=("cat", "dog")), rows=1)
    assert "the network knows others" in comparison_writer("mixup", None)(stranger)[1].read_text(encoding="utf-8")


def test_unknown_methods_are_named_before_anything_is_drawn() -> None:
    with pytest.raises(ValueError, match="mixdown"):
        comparison_writer("mixup,mixdown", None)
