"""`saligraft show` as a user types it."""

from pathlib import Path

import pytest
from PIL import Image
from tests.data.test_image_files import png_header
from tests.reports.pages import assert_self_contained

from saligraft.cli import run
from saligraft.methods import REGISTRY
from saligraft.training import make_recipe


def show(out: Path, *arguments: str) -> int:
    return run(["show", *arguments, "--out", str(out)])


def test_a_gallery_of_shapes_through_an_untrained_network(tmp_path: Path, capsys) -> None:
    assert show(tmp_path / "out", "--network", "wrn-10-1", "--rows", "3", "--grid", "4") == 0
    shown, notice = capsys.readouterr()
    assert notice.startswith("Saliency comes from wrn-10-1 with random weights: untrained")
    printed = shown.split()
    assert printed == [str(tmp_path / "out" / name) for name in ("gallery.png", "gallery.html")]
    with Image.open(printed[0]) as picture:
        picture.load()
    page = assert_self_contained(Path(printed[1]).read_text(encoding="utf-8"))
    assert len(page.named("article")) == 3
    assert "4×4 cells" in page.text
    assert "8×8 cells" not in page.text
    assert "untrained" in page.text


def test_own_files_after_images(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("cat.jpg", "dog.png", "owl.png")]
    for file in files:
        Image.effect_noise((60, 40), 80).convert("RGB").save(file)
    assert show(tmp_path, "--images", *files, "--network", "wrn-10-1", "--size", "48", "--rows", "2") == 0
    page = assert_self_contained((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    assert "your images" in page.text
    assert "48×48 pixels" in page.text
    assert sum(name in page.text for name in ("cat", "dog", "owl")) >= 2


def test_a_folder_per_class_as_data(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(5):
            Image.effect_noise((60, 40), 80).convert("RGB").save(tmp_path / "pets" / name / f"{number}.png")
    arguments = ("--network", "wrn-10-1", "--rows", "1", "--size", "32", "--method", "mixup")
    assert show(tmp_path / "out", "--data", f"folder:{tmp_path / 'pets'}", *arguments) == 0
    page = assert_self_contained((tmp_path / "out" / "gallery.html").read_text(encoding="utf-8"))
    assert "2 of folder:pets, 32×32 pixels" in page.text  # one of each class is for testing


def test_another_method_without_saliency(tmp_path: Path) -> None:
    assert show(tmp_path, "--method", "mixup", "--network", "wrn-10-1", "--rows", "2") == 0
    page = assert_self_contained((tmp_path / "gallery.html").read_text(encoding="utf-8"))
    assert "Mixup, pair by pair" in page.text
    assert "Saliency S" not in page.text.partition("Try it")[0]  # the interactive view has the maps of every network


@pytest.mark.slow
def test_every_method_on_the_same_pairs(tmp_path: Path, capsys) -> None:
    arguments = ("--methods", "all", "--network", "wrn-10-1", "--rows", "2", "--pictures", str(tmp_path / "cards"))
    assert show(tmp_path, *arguments) == 0
    printed = capsys.readouterr().out.split()
    assert printed[:2] == [str(tmp_path / name) for name in ("methods.png", "methods.html")]
    names = [*REGISTRY, "saliency-grafting-top-k"]
    assert {Path(path).name for path in printed[2:]} == {f"{name}.png" for name in names}
    for path in (printed[0], *printed[2:]):
        with Image.open(path) as picture:
            picture.load()
    page = assert_self_contained((tmp_path / "methods.html").read_text(encoding="utf-8"))
    assert len(page.with_class("compared")) == 2
    assert "Not shown" not in page.text
    for title in (
        "Saliency Grafting",
        "Grafting, top-k",
        "Manifold Mixup",
        "Cutout",
        "AugMix",
        "PuzzleMix",
        "untrained",
    ):
        assert title in page.text


def test_some_methods_on_own_files(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("cat.jpg", "dog.png")]
    for file in files:
        Image.effect_noise((60, 40), 80).convert("RGB").save(file)
    arguments = ("--methods", "mixup,saliency-grafting", "--network", "wrn-10-1", "--size", "48")
    assert show(tmp_path, "--images", *files, *arguments) == 0
    page = assert_self_contained((tmp_path / "methods.html").read_text(encoding="utf-8"))
    assert len(page.with_class("compared")) == 2  # two files make no more pairs
    assert "AugMix" not in page.text
    assert "48×48 pixels" in page.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "mixup,mixdown"], "'saliency-grafting', "),
        (["--methods", "all", "--method", "mixup"], "--method must be left out with --methods"),
        (["--methods", "all", "--grid", "4"], "--grid must be left out with --methods"),
        (["--methods", "all", "--rows", "0"], "--rows must be >= 1, got 0"),
        (["--pictures", "folder"], "--pictures must be left out without --methods"),
        (["--method", "mixdown"], "saliency-grafting"),
        (["--data", "cifar1000"], "shapes"),
        (["--method", "cutmix", "--grid", "4"], "--grid must be left out for method cutmix"),
        (["--temperature", "0"], "temperature must be a finite number > 0, got 0.0"),
        (["--grid", "64", "--network", "wrn-10-1"], "grid"),
        (["--rows", "0"], "--rows must be >= 1, got 0"),
        (["--images", "nowhere.png", "nothing.png"], "'nowhere.png' does not exist"),
        (["--images", ".", "--data", "shapes"], "not both"),
        (["--root", "nowhere"], "--root must be left out without --data"),
        (["--data", "shapes", "--root", "nowhere"], "root must be None for shapes"),
        (["--run", "nowhere"], "no run folder nowhere"),
        (["--network", "wrn-10-1", "--run", "x"], "not both"),
        (["--network", "nonsense"], "unknown network"),
        (["--size", "-3"], "--size must be >= 1, got -3"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(tmp_path: Path, capsys, arguments: list[str], words: str) -> None:
    assert show(tmp_path, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *notices, error = captured.err.splitlines()
    assert all(line.startswith("Saliency comes from ") for line in notices)
    assert words in error


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png_header(20_000, 20_000), "Image size (400000000 pixels) exceeds limit"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of BMP, GIF, JPEG"),
    ],
    ids=["bomb", "PostScript"],
)
def test_images_that_cannot_be_read_end_in_one_line(tmp_path: Path, capsys, content: bytes, words: str) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(content)
    assert show(tmp_path, "--images", str(tmp_path / "a.png"), str(tmp_path / "b.png"), "--network", "wrn-10-1") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert f"image file {tmp_path / 'b.png'} cannot be read: " in error
    assert words in error


def test_unreadable_files_of_a_folder_are_skipped_with_a_warning(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a", "b", "cut"):
        Image.new("RGB", (40, 40), "red" if name == "a" else "blue").save(photos / f"{name}.jpg")
    (photos / "cut.jpg").write_bytes((photos / "cut.jpg").read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"skipped: image file .*cut\.jpg cannot be read: ") as warned:
        assert show(tmp_path, "--images", str(photos), "--network", "wrn-10-1", "--rows", "1") == 0
    assert len(warned) == 1
    named = [str(photos / name) for name in ("a.jpg", "b.jpg", "cut.jpg")]
    assert show(tmp_path, "--images", *named, "--network", "wrn-10-1") == 2
    (photos / "b.jpg").unlink()
    with pytest.warns(UserWarning, match="skipped"):
        assert show(tmp_path, "--images", str(photos), "--network", "wrn-10-1") == 2  # only one is readable


def test_without_a_network_one_is_trained_once_and_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    from saligraft.experiments import show as showing

    small = {"data": {"options": {"per_class": 5}}, "network": {"name": "wrn-10-1"}, "training": {"epochs": 1}}
    monkeypatch.setattr(showing, "quick_recipe", lambda: make_recipe(small))
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))
    assert show(tmp_path / "one", "--rows", "1") == 0
    (weights,) = (tmp_path / "cache").glob("show-network-*/model.safetensors")
    modified = weights.stat().st_mtime_ns
    capsys.readouterr()
    assert show(tmp_path / "two", "--rows", "1", "--seed", "5") == 0
    assert weights.stat().st_mtime_ns == modified
    assert capsys.readouterr().err == ""
    assert "epochs on shapes" in (tmp_path / "two" / "gallery.html").read_text(encoding="utf-8")

    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "two" / "gallery.html" / "no-folder"))
    assert show(tmp_path / "three", "--rows", "1") == 0
    assert (tmp_path / "three" / "network" / "model.safetensors").is_file()
