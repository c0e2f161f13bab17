"""Lenses, image files and the gallery's files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.reports.pages import assert_self_contained
from tests.runs import train_tiny

from saligraft.data import ImageData, load
from saligraft.experiments.show import (
    ROWS,
    Scene,
    choose,
    draw_gallery,
    network_of_run,
    pretrained_network,
    read_images,
    untrained_network,
    view_of_run,
    write_gallery,
)
from saligraft.methods import CutMix, Mixup, SaliencyGrafting


def untrained_scene(pool: ImageData, out: Path = Path(), rows: int | None = None) -> Scene:
    return Scene(pool=pool, lens=untrained_network("wrn-10-1", pool, seed=1), out=out, rows=rows, seed=0)


def save(path: Path, size: tuple[int, int], colour: str, mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def test_files_of_any_size_become_squares_named_after_them(tmp_path: Path) -> None:
    files = [save(tmp_path / "dog.png", (50, 20), "red"), save(tmp_path / "cat.jpg", (7, 31), "blue")]
    data = read_images(files, 24)
    assert data.images.shape == (2, 3, 24, 24)
    assert data.classes == ("cat", "dog")
    assert [data.classes[i] for i in data.labels] == ["dog", "cat"]
    assert data.images[0].float().mean((1, 2)).tolist() == [255, 0, 0]


def test_classes_come_from_folders_where_there_are_several(tmp_path: Path) -> None:
    for name in ("01.cats/1.png", "01.cats/2.png", "big_dogs/1.PNG"):
        save(tmp_path / name, (16, 16), "green")
    (tmp_path / "01.cats" / "notes.txt").write_text("no image")
    data = read_images([tmp_path], 16)
    assert data.classes == ("big dogs", "cats")
    assert sorted(data.labels.tolist()) == [0, 1, 1]


def test_classes_are_file_names_and_own_pictures_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cat.png", "dog.png", "gallery.png", "runs/mine/x.png", ".venv/logo.png"):
        save(tmp_path / name, (16, 16), "green")
    data = load("shapes", split="test", per_class=1)
    write_gallery(untrained_scene(data, rows=1, out=tmp_path / "runs" / "show"), "mixup", Mixup())
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert read_images([Path()], 16).classes == ("cat", "dog", "gallery")
    assert read_images([Path("cat.png"), Path("runs/mine/x.png")], 16).classes == ("cat", "x")


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("photos/cat.png", "photos/dog.png"):
        save(tmp_path / name, (16, 16), "green")
    monkeypatch.chdir(tmp_path)
    assert len(read_images([Path("photos"), Path("photos/cat.png"), tmp_path / "photos" / "dog.png"], 16).images) == 2


def test_files_with_one_name_or_numbers_are_named_after_their_folders(tmp_path: Path) -> None:
    files = [save(tmp_path / name, (16, 16), "green") for name in ("cats/1.png", "dogs/2.png")]
    assert read_images(files, 16).classes == ("cats", "dogs")
    save(tmp_path / "cats" / "2.png", (16, 16), "green")
    assert read_images([tmp_path / "cats"], 16).classes == ("cats 1", "cats 2")
    (tmp_path / "links").mkdir()
    for name, file in zip(("1.png", "2.png"), files, strict=True):  # as data version control leaves them
        (tmp_path / "links" / name).symlink_to(file)
    assert read_images([tmp_path / "links"], 16).classes == ("links 1", "links 2")


@pytest.mark.parametrize(("mode", "colour"), [("L", "grey"), ("RGBA", "red"), ("P", "red"), ("1", "white")])
def test_other_modes_are_read_as_rgb(tmp_path: Path, mode: str, colour: str) -> None:
    files = [save(tmp_path / f"{i}.png", (9, 9), colour, mode) for i in range(2)]
    assert read_images(files, 9).images.shape == (2, 3, 9, 9)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    good = save(tmp_path / "a.png", (9, 9), "red")
    bad = tmp_path / "b.png"
    bad.write_bytes(good.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"image file .*b\.png cannot be read: "):
        read_images([good, bad], 9)
    with pytest.raises(ValueError, match=r"not found: .*c\.png"):
        read_images([good, tmp_path / "c.png"], 9)
    with pytest.raises(ValueError, match="at least 2 files, got 1"):
        read_images([good], 9)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"folder .*empty must hold images"):
        read_images([tmp_path / "empty"], 9)


def test_choose_keeps_labels_with_their_images() -> None:
    data = load("shapes", split="test", per_class=4)
    chosen = choose(data, 7, seed=3)
    assert len(chosen) == 7
    for image, label in zip(chosen.images, chosen.labels, strict=True):
        place = int((data.images == image).flatten(1).all(1).nonzero()[0])
        assert data.labels[place] == label


def test_the_network_of_a_run_is_the_one_that_was_trained(tmp_path: Path) -> None:
    result = train_tiny(tmp_path / "run", data={"options": {"per_class": 2}})
    lens = network_of_run(tmp_path / "run")
    images = load("shapes", split="test", per_class=1).images.float() / 255
    with torch.no_grad():
        normal = (images - 0.5) / 0.25
        assert torch.equal(lens.network(normal), result.network(normal))
    assert lens.size == (32, 32)
    assert "1 epoch on shapes" in lens.describe()
    large = torch.nn.functional.interpolate(images, (64, 64))
    assert lens.saliency(large).shape == lens.saliency(images).shape


def test_the_view_of_a_run_is_optional(tmp_path: Path) -> None:
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        for number in range(4):
            save(tmp_path / "images" / place / f"{number}.png", (16, 16), "green")
    run = tmp_path / "run"
    train_tiny(run, data={"name": f"folder:{tmp_path / 'images'}"}, training={"epochs": 1, "batch_size": 4})
    assert {image["name"] for image in view_of_run(run)["explorer"]["images"]} == {"cat", "dog"}
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match=r"interactive view could not be created: .*images"):
        assert view_of_run(run) == {}
    assert view_of_run(tmp_path) == {}


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it holds no recipe\.toml"):
        network_of_run(tmp_path)


def test_a_gallery_changes_neither_mode_nor_statistics_nor_random_state() -> None:
    data = load("shapes", split="test", per_class=1)
    state = torch.get_rng_state()
    scene = untrained_scene(data, rows=2)
    lens = scene.lens
    assert torch.equal(torch.get_rng_state(), state)
    before = {name: value.clone() for name, value in lens.network.state_dict().items()}
    rows = draw_gallery(scene, SaliencyGrafting())
    assert len(rows) == 2
    assert rows[0].source_saliency is not None
    assert not lens.network.training
    assert all(torch.equal(before[name], value) for name, value in lens.network.state_dict().items())
    assert "untrained" in lens.describe()


def test_a_method_without_saliency_gets_none() -> None:
    rows = draw_gallery(untrained_scene(load("shapes", split="test", per_class=1), rows=1), CutMix())
    assert rows[0].source_saliency is None


def test_the_gallery_has_six_pairs_by_default_and_names_the_network(tmp_path: Path) -> None:
    pool = choose(load("shapes", split="test", per_class=2), 20, seed=0)
    scene = untrained_scene(pool, tmp_path)
    picture, html = write_gallery(scene, "saliency-grafting", SaliencyGrafting())
    with Image.open(picture) as shown:
        shown.load()
    page = assert_self_contained(html.read_text(encoding="utf-8"))
    assert len(page.named("article")) == ROWS
    for words in (f"The saliency is that of {scene.lens.describe()}", "in five steps", "used for training"):
        assert words in page.text
    write_gallery(replace(scene, rows=1), "mixup", Mixup())
    other = html.read_text(encoding="utf-8")
    assert "in five steps" not in other
    assert other.count("The saliency is that of") == 1  # of the interactive view alone


def test_two_images_are_never_paired_with_themselves(tmp_path: Path) -> None:
    pool = read_images([save(tmp_path / f"{colour}.png", (16, 16), colour) for colour in ("red", "blue")], 16)
    rows = draw_gallery(untrained_scene(pool), CutMix())
    pairs = [(row.source_class, row.destination_class) for row in rows]
    assert set(pairs) == {("red", "blue"), ("blue", "red")}
    assert all(0 < row.mask.mean() < 1 for row in rows)


def test_a_network_of_torchvision_has_its_pretrained_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    weights = models.resnet18().state_dict()
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(weights, tmp_path / "hub" / "checkpoints" / Path(models.ResNet18_Weights.DEFAULT.url).name)
    lens = pretrained_network("torchvision:resnet18")
    assert torch.equal(lens.network.state_dict()["fc.weight"], weights["fc.weight"])
    assert (lens.size, len(lens.classes), lens.mean) == ((224, 224), 1000, (0.485, 0.456, 0.406))
    assert lens.saliency(torch.rand(2, 3, 64, 64)).shape == (2, 7, 7)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_weights_that_cannot_be_downloaded_are_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip(name.partition(":")[0])

    def fail(*_: object, **__: object) -> None:
        raise OSError("no route to host\nand more")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", fail)
    if library.__name__ == "timm":
        monkeypatch.setattr("timm.create_model", fail)
        monkeypatch.setattr("saligraft.experiments.show.build_network", lambda *_: None)
    with pytest.raises(ValueError, match=rf"pretrained weights of {name} cannot be loaded \(no route to host\); "):
        pretrained_network(name)
