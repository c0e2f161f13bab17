"""Image files: every mode and damage, views against torchvision's, and where in the stored image they lie."""

import io
import random
import resource
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as VF

from saligraft.data import StreamingLoader
from saligraft.data.dataset import view_size
from saligraft.data.files import FileNames
from saligraft.data.image_files import ImageFiles, covering_size, random_box, read_image

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth colours, which survive compression."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def make_files(
    folder: Path, sizes: list[tuple[int, int]], size: tuple[int, int] = (16, 16), **options: Any
) -> ImageFiles:
    names = [f"{i}.png" for i in range(len(sizes))]
    for i, (name, (height, width)) in enumerate(zip(names, sizes, strict=True)):
        picture(height, width, i).save(folder / name)
    labels = torch.zeros(len(sizes), dtype=torch.int64)
    whole = torch.tensor([[0, 0, width, height] for height, width in sizes])
    return ImageFiles(
        name="files",
        labels=labels,
        classes=("all",),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        boxes=whole,
        folder=folder,
        files=FileNames(names),
        size=size,
        **options,
    )


def as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(48, 70, (16, 16)), (70, 48, (12, 20)), (9, 9, (16, 16)), (16, 16, (16, 16)), (300, 20, (12, 20))],
)
def test_training_views_are_torchvisions_resized_crops(
    tmp_path: Path, height: int, width: int, size: tuple[int, int]
) -> None:
    data = make_files(tmp_path, [(height, width)], size)
    for seed in range(5):
        view, (*box, stored_height, stored_width) = data.sample(0, random.Random(seed))
        assert (stored_height, stored_width) == (height, width)
        assert tuple(box) == random_box(height, width, SCALE, RATIO, random.Random(seed))
        expected = VF.resized_crop(as_tensor(picture(height, width)), *box, size=list(size), antialias=True)
        assert torch.equal(view, expected)


@pytest.mark.parametrize(
    ("height", "width", "side"),
    [(48, 70, 16), (48, 70, 33), (71, 48, 28), (71, 48, 16), (9, 9, 33), (256, 256, 28), (300, 20, 16), (300, 20, 33)],
)
def test_test_views_are_torchvisions_resize_and_centre_crop(tmp_path: Path, height: int, width: int, side: int) -> None:
    data = make_files(tmp_path, [(height, width)], (side, side))
    view, (top, left, rows, columns, *stored) = data.sample(0, None)
    assert stored == [height, width]
    protocol = v2.Compose([v2.Resize(round(side / 0.875), antialias=True), v2.CenterCrop(side)])
    assert torch.equal(view, protocol(as_tensor(picture(height, width))))
    share = 0.875 * min(height, width)
    assert abs(rows - share) <= 2 + share / side
    assert abs(columns - share) <= 2 + share / side
    assert abs(top + rows / 2 - height / 2) <= 1 + height / side / 2
    assert abs(left + columns / 2 - width / 2) <= 1 + width / side / 2


def test_without_a_scale_views_are_cut_out_of_a_square(tmp_path: Path) -> None:
    """torchvision's Resize((256, 256)) and crops; in tests Resize((224, 224)), as clovaai/wsolevaluation does."""
    data = make_files(tmp_path, [(300, 180)], (28, 28), scale=None)
    resized = v2.Resize((32, 32), antialias=True)(as_tensor(picture(300, 180)))
    corners = set()
    for seed in range(300):
        view, (top, left, rows, columns, *stored) = data.sample(0, random.Random(seed))
        assert stored == [300, 180]
        draws = random.Random(seed)
        corner = draws.randint(0, 4), draws.randint(0, 4)
        corners.add(corner)
        assert torch.equal(view, VF.crop(resized, *corner, 28, 28))
        assert top == pytest.approx(corner[0] * 300 / 32, abs=1)
        assert left == pytest.approx(corner[1] * 180 / 32, abs=1)
        assert rows == pytest.approx(300 * 28 / 32, abs=1)
        assert columns == pytest.approx(180 * 28 / 32, abs=1)
    assert len(corners) == 25  # every place
    view, box = data.sample(0, None)
    assert torch.equal(view, v2.Resize((28, 28), antialias=True)(as_tensor(picture(300, 180))))
    assert box == (0, 0, 300, 180, 300, 180)


sides = st.integers(1, 400)


@given(height=sides, width=sides, seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_random_boxes_lie_in_the_image_with_the_area_and_shape_asked_for(height: int, width: int, seed: int) -> None:
    top, left, rows, columns = random_box(height, width, SCALE, RATIO, random.Random(seed))
    assert 0 <= top <= top + rows <= height
    assert 0 <= left <= left + columns <= width
    assert rows >= 1 <= columns
    if min(height, width) > 50 and 0.5 < height / width < 2:  # one of ten tries fits, rounding matters little
        assert 0.06 < rows * columns / (height * width) <= 1
        assert 0.7 < columns / rows < 1.4


def test_random_boxes_are_spread_like_torchvisions() -> None:
    torch.manual_seed(0)
    image = torch.empty(3, 100, 140)
    theirs = torch.tensor(
        [v2.RandomResizedCrop.make_params(v2.RandomResizedCrop(1, SCALE, RATIO), [image])[name] for _ in range(2000)
         for name in ("top", "left", "height", "width")], dtype=torch.float64,
    ).view(-1, 4)  # fmt: skip
    ours = torch.tensor([random_box(100, 140, SCALE, RATIO, random.Random(i)) for i in range(2000)]).double()
    error = (ours.var(0) / 2000 + theirs.var(0) / 2000).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4 * error).all()


@given(height=sides, width=sides, rows=st.integers(1, 64), columns=st.integers(1, 64))
@settings(max_examples=200, deadline=None)
def test_a_test_view_always_fits_and_shows_a_part_of_the_stored_image(
    height: int, width: int, rows: int, columns: int
) -> None:
    new_height, new_width = covering_size(height, width, (rows, columns), 0.875)
    assert new_height >= round(rows / 0.875)
    assert new_width >= round(columns / 0.875)
    assert new_height == round(rows / 0.875) or new_width == round(columns / 0.875)


@pytest.mark.parametrize("stored", [(1, 1), (1, 90), (200, 3)])
def test_extreme_shapes_give_views_and_boxes_within_the_image(tmp_path: Path, stored: tuple[int, int]) -> None:
    data = make_files(tmp_path, [stored], (8, 12))
    for draws in (None, *map(random.Random, range(20))):
        view, (top, left, height, width, *_) = data.sample(0, draws)
        assert view.shape == (3, 8, 12)
        assert view.is_contiguous()
        assert top >= 0 <= left
        assert height >= 1 <= width
        assert top + height <= stored[0]
        assert left + width <= stored[1]


@pytest.mark.parametrize(
    ("mode", "height", "width"),
    [("RGB", 57, 40), ("L", 33, 528), ("P", 480, 30), ("RGBA", 1, 1), ("CMYK", 57, 40), ("RGB", 480, 30)],
)
def test_ordinary_images_are_resized_whole(tmp_path: Path, mode: str, height: int, width: int) -> None:
    """Up to 16 times as long as wide: read, turned, resized as a whole, then cut, to the bit."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "0.tif"
    data = make_files(tmp_path, [(9, 9)], (12, 12))
    data = ImageFiles(**{**vars(data), "files": FileNames(["0.tif"])})
    picture(height, width).convert(mode).save(path, exif=exif)
    with Image.open(path) as image:
        turned = as_tensor(ImageOps.exif_transpose(image))
    height, width = turned.shape[1:]
    rows, columns = (14, int(14 * width / height)) if width >= height else (int(14 * height / width), 14)
    whole = F.interpolate(turned[None], (rows, columns), mode="bilinear", antialias=True)[0]
    top, left = round((rows - 12) / 2), round((columns - 12) / 2)
    assert torch.equal(data.sample(0, None)[0], whole[:, top : top + 12, left : left + 12])
    box = random_box(height, width, SCALE, RATIO, random.Random(5))
    part = VF.crop(turned, *box).contiguous()
    expected = F.interpolate(part[None], (12, 12), mode="bilinear", antialias=True)[0]
    assert torch.equal(data.sample(0, random.Random(5))[0], expected)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize("stored", [(1, 5000), (5000, 1)])
def test_long_images_take_no_more_memory_than_their_view(tmp_path: Path, stored: tuple[int, int]) -> None:
    data = make_files(tmp_path, [stored], (224, 224))
    before = peak_bytes()
    view, (top, left, height, width, *_) = data.sample(0, None)
    assert peak_bytes() - before < 100_000_000  # 2 GB and more, were the whole image resized
    assert view.shape == (3, 224, 224)
    assert (top + left, height, width) == (2500, 1, 1)


@pytest.mark.parametrize(
    ("across", "along"), [(1, 500), (1, 1003), (2, 501), (2, 500), (3, 1003), (20, 501), (20, 1003)]
)
def test_long_images_show_their_middle(tmp_path: Path, across: int, along: int) -> None:
    """The whole image resized, but for a shift of up to a pixel and for rounding."""
    data = make_files(tmp_path, [(along, across)], (14, 14))
    noise = np.random.default_rng(0).integers(0, 256, (along // 5, 1, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((across, along), Image.Resampling.BICUBIC)
    image.save(tmp_path / "0.png")
    stored = as_tensor(image)
    rows = int(16 * along / across)
    whole = F.interpolate(stored[None], (rows, 16), mode="bilinear", antialias=True)[0].int()
    start = round((rows - 14) / 2)
    around = torch.stack([whole[:, start + shift : start + shift + 14, 1:15] for shift in (-1, 0, 1)])
    view, (top, _, height, *_) = data.sample(0, None)
    assert (view.int() >= around.amin(0) - 4).all()
    assert (view.int() <= around.amax(0) + 4).all()
    assert abs(top + height / 2 - along / 2) <= 1


@pytest.mark.parametrize(("mode", "suffix"), [("L", "jpg"), ("CMYK", "jpg"), ("P", "png"), ("RGBA", "png"),
                                              ("LA", "png"), ("1", "png"), ("RGB", "webp"), ("RGB", "gif"),
                                              ("RGB", "bmp"), ("CMYK", "tif")])  # fmt: skip
def test_every_mode_becomes_rgb_as_it_looks(tmp_path: Path, mode: str, suffix: str) -> None:
    original = picture(40, 50).convert(mode)
    path = tmp_path / f"image.{suffix}"
    original.save(path, **({"quality": 95} if suffix in ("jpg", "webp") else {}))
    image = read_image(path)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 40, 50))
    assert (image.float() - as_tensor(original).float()).abs().mean() < 5


def test_sixteen_bit_grey_keeps_its_range(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 256 * 4).reshape(16, 64).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert torch.equal(read_image(tmp_path / "deep.png")[1], torch.from_numpy((values / 257).round().astype(np.uint8)))


def test_photographs_are_turned_upright_unless_stored_pixels_are_asked_for(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise to view
    path = tmp_path / "photo.png"
    picture(20, 30).save(path, exif=exif)
    stored = as_tensor(picture(20, 30))
    assert torch.equal(read_image(path), torch.rot90(stored, -1, (1, 2)))
    assert torch.equal(read_image(path, upright=False), stored)


def damaged(kind: str) -> bytes:
    buffer = io.BytesIO()
    picture(64, 64).save(buffer, "JPEG" if kind == "cut jpeg" else "PNG")
    whole = buffer.getvalue()
    if kind.startswith("cut"):
        return whole[: len(whole) * 2 // 3]
    return {"empty": b"", "text": b"not an image", "changed png": whole[:60] + b"\0" * 40 + whole[100:]}[kind]


@pytest.mark.parametrize("kind", ["cut jpeg", "cut png", "changed png", "empty", "text"])
def test_damage_is_named_not_skipped(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "my bird.jpg"
    path.write_bytes(damaged(kind))
    with pytest.raises(ValueError, match=r"^image file .*my bird\.jpg cannot be read: [^\n]+$"):
        read_image(path)


def test_formats_that_run_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bird.png"
    picture(9, 9).save(path, "EPS")
    with pytest.raises(ValueError, match=r"bird\.png cannot be read: it is damaged or none of BMP, GIF, JPEG, PNG"):
        read_image(path)


def test_damage_that_pillow_calls_otherwise_is_named(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E], exif[0x0112] = "a bird", 6
    path = tmp_path / "bird.jpg"
    picture(9, 9).save(path, exif=exif)
    # the text becomes a height, which Pillow cannot write back when it takes the orientation away
    path.write_bytes(path.read_bytes().replace(b"\x01\x0e\x00\x02", b"\x01\x01\x00\x02"))
    with pytest.raises(ValueError, match=r"bird\.jpg cannot be read: required argument is not an integer"):
        read_image(path)


def png_header(height: int, width: int) -> bytes:
    """A PNG that claims a size, and ends there."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks
    )


def test_an_image_too_large_to_be_honest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(20_000, 20_000))
    with pytest.raises(ValueError, match=r"^image file .*bomb\.png cannot be read: Image size \(400000000 pix[^\n]+$"):
        read_image(path)


def test_missing_and_floating_point_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"image file .*none\.png is missing"):
        read_image(tmp_path / "none.png")
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match=r"float\.tif cannot be read: pixels must be integers, got floating point"):
        read_image(tmp_path / "float.tif")


def test_subset_and_resized_keep_what_belongs_together(tmp_path: Path) -> None:
    data = make_files(tmp_path, [(20, 20 + i) for i in range(4)], scale=(0.5, 1.0))
    some = data.subset(torch.tensor([3, 1]))
    assert list(some.files) == ["3.png", "1.png"]
    assert some.boxes is not None
    assert some.boxes[:, 2].tolist() == [23, 21]
    small = some.resized(8)
    assert small.image_shape == (3, 8, 8)
    assert small.scale == (0.5, 1.0)
    assert torch.equal(small.take(torch.tensor([1])).images[0], data.resized((8, 8)).sample(1, None)[0])


def test_names_of_any_kind_find_their_files(tmp_path: Path) -> None:
    names = ["a b/ü.png", "émile.PNG", "x" * 200 + ".png"]
    (tmp_path / "a b").mkdir()
    for name in names:
        picture(9, 9).save(tmp_path / name)
    data = make_files(tmp_path, [(9, 9)] * 3)
    named = ImageFiles(**{**vars(data), "files": FileNames(names)})
    assert all(named.sample(i, None)[0].shape == (3, 16, 16) for i in range(3))


def test_workers_read_the_same_views(tmp_path: Path) -> None:
    data = make_files(tmp_path, [(20 + i, 30) for i in range(6)])
    alone, helped = (list(StreamingLoader(data, batch_size=3, train=True, workers=workers)) for workers in (0, 2))
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.geometry, other.geometry)
        assert one.geometry.shape == (3, 7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": (0.5, 0.1)}, r"scale must be two ascending numbers in \(0, 1\], got \(0.5, 0.1\)"),
        ({"scale": (0.5,)}, r"scale must be two ascending numbers in \(0, 1\], got \(0.5,\)"),
        ({"scale": 0.5}, r"scale must be a sequence of numbers, got 0.5"),
        ({"scale": ("a", "b")}, "each of scale must be a number, got str"),
        ({"ratio": (0.0, 1.0)}, "ratio must be two ascending numbers > 0"),
        ({"ratio": (1.0,)}, "ratio must be two ascending numbers > 0"),
        ({"test_crop": 1.5}, r"test_crop must lie in \(0, 1\], got 1.5"),
        ({"files": FileNames(["a", "b"])}, r"files must be as many as labels \(1\), got 2"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    data = make_files(tmp_path, [(9, 9)])
    with pytest.raises((ValueError, TypeError), match=words):
        ImageFiles(**{**vars(data), **options})


def test_bad_sizes_are_named() -> None:
    assert view_size([20, 30], most=30) == (20, 30)
    with pytest.raises(TypeError, match="size must be an integer or"):
        view_size("large", most=30)
    with pytest.raises(ValueError, match="size must be >= 1, got 0"):
        view_size(0, most=30)
    with pytest.raises(ValueError, match="size must be <= 30, got 31"):
        view_size((30, 31), most=30)
