"""A run read back: its network without its data, and images prepared as in the test."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchvision.transforms.v2 import functional

from saligraft.data import StreamingLoader
from saligraft.training import SilentReporter, load_run, make_recipe, train

TRAINING = {"epochs": 1, "batch_size": 4}


def run_of(data: dict[str, Any], folder: Path) -> Path:
    recipe = make_recipe({"data": {"pad": 2, **data}, "network": {"name": "wrn-10-1"}, "training": TRAINING})
    train(recipe, folder, reporter=SilentReporter())
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in two classes, wide and tall."""
    root = tmp_path_factory.mktemp("photos")
    generator = torch.Generator().manual_seed(0)
    for number, name in enumerate(("birds", "cats")):
        (root / name).mkdir()
        for place in range(4):
            pixels = torch.randint(256, (30 + 20 * number, 45, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(root / name / f"{place}.png")
    return root


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"size": 16, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
    return run_of({"name": f"folder:{photos}", "options": options}, tmp_path_factory.mktemp("run"))


def test_the_weights_say_what_the_network_takes_and_means(run: Path) -> None:
    with safe_open(run / "model.safetensors", "pt") as file:
        facts = json.loads(file.metadata()["saligraft"])
    assert facts["classes"] == ["birds", "cats"]
    assert (facts["mean"], facts["std"]) == ([0.4, 0.5, 0.6], [0.2, 0.25, 0.3])
    assert (facts["image_shape"], facts["network"]["name"]) == ([3, 16, 16], "wrn-10-1")


def test_a_network_is_used_without_its_data(run: Path, photos: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    text = (copy / "recipe.toml").read_text()
    (copy / "recipe.toml").write_text(text.replace(str(photos), str(tmp_path / "gone")))
    loaded = load_run(copy)
    assert (loaded.classes, loaded.network.training) == (("birds", "cats"), False)
    assert (loaded.mean, loaded.std) == ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    assert repr(loaded).startswith(f"SavedRun('{copy}': wrn-10-1, none, 2 classes of folder:")
    assert "\n" not in repr(loaded)
    [answer] = loaded.predict([photos / "cats" / "0.png"])
    assert sorted(name for name, _ in answer) == ["birds", "cats"]
    assert sum(share for _, share in answer) == pytest.approx(1)
    with pytest.raises(ValueError, match="gone does not exist"):
        _ = loaded.data


@pytest.mark.parametrize("name", ["birds/1.png", "cats/1.png"])
def test_images_are_prepared_as_in_the_test(name: str, run: Path, photos: Path) -> None:
    loaded = load_run(run)
    pixels = functional.pil_to_tensor(Image.open(photos / name))
    resized = functional.resize(pixels, [18], antialias=True)  # 16 / 0.875
    view = functional.center_crop(resized, [16, 16]).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    assert (loaded.transform(photos / name) - (view - mean) / std).abs().max() < 1e-5


def test_answers_equal_those_of_the_test(run: Path) -> None:
    loaded = load_run(run)
    files = [loaded.data.folder / name for name in loaded.data.files]
    shares = loaded.predictions.logits.double().softmax(1)
    for row, answer in zip(shares, loaded.predict(files, top=1), strict=True):
        assert answer == [(loaded.classes[int(row.argmax())], pytest.approx(float(row.max()), abs=1e-5))]


def test_the_loader_is_closed_though_not_all_batches_are_used(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(StreamingLoader, "close", lambda loader: closed.append(loader))
    batches = load_run(run).batches()
    next(batches)
    assert not closed
    batches.close()
    assert len(closed) == 1


def test_one_image_or_several_in_any_form(run: Path, photos: Path) -> None:
    loaded = load_run(run)
    files = [photos / "cats" / "0.png", photos / "cats" / "1.png"]
    opened = [Image.open(file) for file in files]
    pixels = torch.stack([functional.pil_to_tensor(image) for image in opened])
    both, first = loaded.predict(files), loaded.predict(files[:1])  # batches of other sizes round differently
    assert both[0] != both[1]
    for several in (opened, iter(opened), tuple(map(str, files)), pixels, pixels / 255, list(pixels)):
        assert loaded.predict(several) == both
    for one in (files[0], str(files[0]), opened[0], pixels[0], pixels[0] / 255, pixels[:1]):
        assert loaded.predict(one) == first
    grey = opened[0].convert("L")
    assert loaded.predict(functional.pil_to_tensor(grey)) == loaded.predict(grey)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.randn(3, 9, 9), ValueError, r"must lie in \[0, 1\], not normalised, got -"),
        (torch.zeros(9, 9), ValueError, r"shape \(3, H, W\) or \(1, H, W\), got \(9, 9\)"),
        (torch.zeros(2, 4, 9, 9), ValueError, r"got \(4, 9, 9\)"),
        (torch.zeros(3, 9, 9, dtype=torch.int64), TypeError, r"uint8 or floating point, got torch.int64"),
        (torch.zeros(9, 9, 3, dtype=torch.uint8).numpy(), TypeError, r"or a tensor \(3, H, W\), got ndarray"),
        (7, TypeError, "must be a file, a Pillow image or a tensor .*, got int"),
    ],
)
def test_what_is_no_image_is_named(run: Path, images: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_run(run).predict(images)


def test_orientation_grey_and_transparency(run: Path, tmp_path: Path) -> None:
    loaded = load_run(run)
    grey = torch.randint(256, (40, 60), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).numpy()
    image = Image.fromarray(grey)
    expected = loaded.transform(image)
    turned, tags = image.transpose(Image.Transpose.ROTATE_90), Image.Exif()
    tags[0x0112] = 6  # to be turned by 90° clockwise
    turned.save(tmp_path / "turned.png", exif=tags)
    assert torch.equal(loaded.transform(tmp_path / "turned.png"), expected)
    assert torch.equal(loaded.transform(image.convert("RGBA")), expected)
    image.convert("LA").save(tmp_path / "alpha.png")
    assert torch.equal(loaded.transform(str(tmp_path / "alpha.png")), expected)


def test_weights_that_do_not_say_what_they_take_are_refused(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    save_file(load_file(run / "model.safetensors"), copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged: its metadata cannot be read"):
        load_run(copy)


def test_what_cannot_be_used_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder: it holds no recipe"):
        load_run(tmp_path)
    with pytest.raises(ValueError, match=r"as many classes as it was trained on \(2\), got 10 of shapes"):
        _ = load_run(run, ["data.name=shapes"]).data
    with pytest.raises(ValueError, match="top must be"):
        load_run(run).predict([], top=0)
    loaded = load_run(run)
    object.__setattr__(loaded, "inputs", loaded.inputs._replace(image_shape=(5, 16, 16)))
    with pytest.raises(ValueError, match=r"a network of 3 channels, RGB, or of 1, grey, got one of 5, trained"):
        loaded.predict([Image.new("L", (9, 9))])
