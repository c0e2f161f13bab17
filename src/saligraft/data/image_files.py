"""One split of images in files: decoded, cropped and resized one at a time.

Shapes: N files; H W pixels of a view; a box is top, left, height, width in pixels of the stored image; geometry is a
box and the stored image's height and width.
"""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from saligraft.checks import numbers, shape_of
from saligraft.data.dataset import Inputs, StreamedData, view_size
from saligraft.names import LARGEST_VIEW

# Of ImageNet's training images: the values that torchvision and others use.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# The formats of `files.SUFFIXES`, detected by content. Pillow supports many more, some with dangerous decoders: for
# PostScript it starts Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A test view is the middle of a resized image. Images more than this many times as long as the view's aspect ratio are
# cropped before resizing: 60000 x 1 pixels at 256 rows would take 12 GB.
LONGEST = 16

Box = tuple[int, int, int, int]
Geometry = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles(StreamedData):
    """RGB views of image files of any size and mode.

    Training: a random part of the image, resized (Szegedy et al. 2015). Testing: the image is resized until a
    `test_crop` of its side is as large as the view, then the centre is cropped. Images more than 16 times as long as
    the view's aspect ratio are cropped first, which may shift the view by one pixel. Both are bilinear with
    antialiasing. Transparency is ignored.

    With `scale` None, the aspect ratio is not kept, as in studies of localisation (Choe et al. 2020): training images
    are resized until `test_crop` of each side is as long as the view's, and a view is cropped at random; test views
    show the entire image.

    Args:
        size: Height and width of a view.
        scale: Smallest and largest share of the area that a training view shows; None as above.
        ratio: Smallest and largest aspect ratio (width over height) of that part.
        test_crop: Share of the side that a test view shows, or with `scale` None a training view.
        upright: Rotate photographs by their EXIF tag; off if boxes or a protocol refer to stored pixels.
        name, labels, classes, mean, std, boxes, folder, files: See `StreamedData`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from saligraft.data import load
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
        ...         (Path(root) / name).parent.mkdir(parents=True)
        ...         Image.new("RGB", (40, 30)).save(Path(root) / name)
        ...     data = load(f"folder:{root}", size=16)  # an ImageFiles
        ...     data.classes, data.resized(24)[0][0].shape
        (('cat', 'dog'), torch.Size([3, 24, 24]))
    """

    size: tuple[int, int]
    scale: tuple[float, float] | None = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    test_crop: float = 0.875
    upright: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.files) != len(self.labels):
            raise ValueError(f"files must be as many as labels ({len(self.labels)}), got {len(self.files)}")
        scale = self.scale
        if scale is not None and (len(numbers("scale", scale)) != 2 or not 0 < scale[0] <= scale[1] <= 1):
            raise ValueError(f"scale must be two ascending numbers in (0, 1], got {scale}")
        if len(numbers("ratio", self.ratio)) != 2 or not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be two ascending numbers > 0, got {self.ratio}")
        if not 0 < self.test_crop <= 1:
            raise ValueError(f"test_crop must lie in (0, 1], got {self.test_crop}")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return 3, *self.size

    def sample(self, index: int, draws: random.Random | None) -> tuple[Tensor, Geometry]:
        """Read a view (3,H,W) uint8 and the part of the stored image that it shows.

        Args:
            index: Index of the sample.
            draws: See `StreamedData.sample`.
        """
        with decoded(self.folder / self.files[index], self.upright) as image:
            return self._view(image, draws)

    @property
    def inputs(self) -> Inputs:
        return super().inputs._replace(
            test_crop=self.test_crop if self.scale is not None else 1.0, keep_ratio=self.scale is not None
        )

    def _view(self, image: Any, draws: random.Random | None) -> tuple[Tensor, Geometry]:
        """Cut a view of a decoded image."""
        if self.scale is None:
            box = (0, 0, image.height, image.width)
        elif draws is None:
            box = _middle_box(image.height, image.width, self.size)
        else:
            box = random_box(image.height, image.width, self.scale, self.ratio, draws)
        top, left, height, width = box
        stored = image.height, image.width
        part = to_tensor(image.crop((left, top, left + width, top + height)))
        if self.scale is None:
            resized, inner = self.size, (0, 0, *self.size)
            if draws is not None:
                rows, columns = (round(side / self.test_crop) for side in self.size)
                corner = draws.randint(0, rows - self.size[0]), draws.randint(0, columns - self.size[1])
                resized, inner = (rows, columns), (*corner, *self.size)
        elif draws is not None:
            return resize(part.contiguous(), self.size), (*box, *stored)
        else:
            resized = covering_size(height, width, self.size, self.test_crop)
            inner = _centre_box(*resized, *self.size)
        shown = _scaled_back(inner, resized, (height, width))
        view = resize(part, resized)[:, inner[0] :, inner[1] :][:, : self.size[0], : self.size[1]]
        return view.contiguous(), (top + shown[0], left + shown[1], *shown[2:], *stored)

    def resized(self, size: int | Sequence[int]) -> Self:
        """Return the same files with views of another size, for progressive resizing.

        Args:
            size: Side, or (height, width), of a view.
        """
        return replace(self, size=view_size(size, most=LARGEST_VIEW))


def test_view(image: Any, inputs: Inputs) -> Tensor:
    """Cut the test view (3,H,W) uint8 of an image that belongs to no data set.

    Args:
        image: A file, a Pillow image of any size and mode, or a tensor (3,H,W) or (1,H,W), uint8 or float in [0, 1].
        inputs: Image size of the network, and how test images are resized and cropped.
    """
    views = ImageFiles(
        name="images",
        labels=torch.empty(0, dtype=torch.int64),
        classes=inputs.classes,
        mean=IMAGENET_MEAN,  # unused: the view is not normalised
        std=IMAGENET_STD,
        size=inputs.image_shape[1:],
        test_crop=inputs.test_crop,
        scale=(1.0, 1.0) if inputs.keep_ratio else None,
    )
    if isinstance(image, str | Path):
        with decoded(Path(image)) as opened:
            return views._view(opened, None)[0]
    from PIL import Image, ImageOps

    if isinstance(image, Tensor):
        image = Image.fromarray(_pixels(image).movedim(0, 2).numpy())
    if not isinstance(image, Image.Image):
        raise TypeError(f"image must be a file, a Pillow image or a tensor (3, H, W), got {type(image).__name__}")
    return views._view(ImageOps.exif_transpose(image), None)[0]


def grey(image: Tensor) -> Tensor:
    """Return the luma (1,H,W) uint8 of an RGB image (3,H,W) uint8, as Pillow does; grey pixels keep their value."""
    red, green, blue = image.to(torch.int32)
    luma: Tensor = (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16
    return luma.to(torch.uint8)[None]


def _pixels(image: Tensor) -> Tensor:
    """An image tensor as RGB (3,H,W) uint8 on the host."""
    if image.ndim != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise ValueError(f"image must have shape (3, H, W) or (1, H, W), got {shape_of(image)}")
    image = image.detach().cpu()
    if image.is_floating_point():
        if not bool(((image >= 0) & (image <= 1)).all()):
            low, high = float(image.min()), float(image.max())
            raise ValueError(f"image must lie in [0, 1], not normalised, got {low:.4g} to {high:.4g}")
        image = (image.float() * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8:
        raise TypeError(f"image must be uint8 or floating point, got {image.dtype}")
    return image.expand(3, -1, -1)


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draws: random.Random
) -> Box:
    """Draw a part of an image: ten attempts at an area and aspect ratio that fit, then the largest valid centre crop.

    Args:
        height: Height of the image.
        width: Width of the image.
        scale: Smallest and largest share of the area.
        ratio: Smallest and largest width over height.
        draws: Random number generator.
    """
    for _ in range(10):
        area = height * width * draws.uniform(*scale)
        shape = math.exp(draws.uniform(math.log(ratio[0]), math.log(ratio[1])))
        rows, columns = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < rows <= height and 0 < columns <= width:
            return draws.randint(0, height - rows), draws.randint(0, width - columns), rows, columns
    rows = min(height, max(1, round(width / ratio[0])))
    columns = min(width, max(1, round(height * ratio[1])))
    return _centre_box(height, width, rows, columns)


def covering_size(height: int, width: int, size: tuple[int, int], share: float) -> tuple[int, int]:
    """Return the smallest size with the image's aspect ratio such that `share` of each side is at least the view's.

    Args:
        height: Height of the image.
        width: Width of the image.
        size: Height and width of the view.
        share: Share of each side.
    """
    rows, columns = (round(side / share) for side in size)
    if rows * width >= columns * height:
        return rows, int(rows * width / height)
    return int(columns * height / width), columns


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize an image, bilinear with antialiasing.

    Args:
        image: (C,H,W) uint8.
        size: Height and width.
    """
    if tuple(image.shape[-2:]) == size:
        return image.contiguous()
    return F.interpolate(image[None], size, mode="bilinear", antialias=True, align_corners=False)[0].contiguous()


def read_image(path: Path, upright: bool = True) -> Tensor:
    """Decode a file to (3,H,W) uint8.

    Args:
        path: The file; one that is missing, truncated or not an image raises a ValueError that names it.
        upright: Rotate a photograph by its EXIF tag.
    """
    with decoded(path, upright) as image:
        return to_tensor(image)


@contextmanager
def decoded(path: Path, upright: bool = True) -> Iterator[Any]:
    """Open and decode a file as a Pillow image of any mode, as a context manager.

    Args:
        path: The file; one that is missing, truncated or not an image raises a ValueError that names it.
        upright: Rotate a photograph by its EXIF tag.
    """
    with _opened(path) as image:
        from PIL import ImageOps

        image.load()
        if upright:
            ImageOps.exif_transpose(image, in_place=True)
        yield image


def image_size(path: Path) -> tuple[int, int]:
    """Return height and width as stored, from the file's header.

    Args:
        path: The file.
    """
    with _opened(path) as image:
        return image.height, image.width


def image_software(path: Path) -> str | None:
    """Return the program that wrote an image, if the file's header names one.

    Args:
        path: The file.
    """
    with _opened(path) as image:
        written_by: str | None = image.info.get("Software")
        return written_by


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a Pillow image and turn its errors into ones that name the file."""
    # Imported here, since `shapes` must work without Pillow; torchvision's decoders support neither CMYK nor 16-bit
    # greyscale nor most formats.
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except FileNotFoundError:
        raise ValueError(f"image file {path} is missing") from None
    except UnidentifiedImageError:
        raise ValueError(f"image file {path} cannot be read: it is damaged or none of {', '.join(FORMATS)}") from None
    # Damaged files make Pillow's decoders raise almost anything; decompression bombs have their own exception.
    except Exception as error:
        raise ValueError(f"image file {path} cannot be read: {str(error) or type(error).__name__}") from error


def to_tensor(image: Any) -> Tensor:
    """Return a Pillow image of any mode as RGB, (3,H,W) uint8.

    Args:
        image: The image.
    """
    import numpy as np

    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ValueError(f"grey values must lie in [0, 65535], got {grey.min()} to {grey.max()}")
        return torch.from_numpy((grey / 257).round().astype(np.uint8)).expand(3, -1, -1)
    if image.mode == "F":
        raise ValueError("pixels must be integers, got floating point")
    if "transparency" in image.info:  # otherwise Pillow warns about palettes with transparency
        image = image.convert("RGBA")
    return torch.from_numpy(np.array(image if image.mode == "RGB" else image.convert("RGB"))).permute(2, 0, 1)


def _centre_box(height: int, width: int, rows: int, columns: int) -> Box:
    return round((height - rows) / 2), round((width - columns) / 2), rows, columns


def _middle_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """The entire image, or the middle of one longer than `LONGEST` allows; the centre does not move."""
    top = max(0, height - max(1, LONGEST * width * size[0] // size[1])) // 2
    left = max(0, width - max(1, LONGEST * height * size[1] // size[0])) // 2
    return top, left, height - 2 * top, width - 2 * left


def _scaled_back(box: Box, size: tuple[int, int], stored: tuple[int, int]) -> Box:
    """A box of the resized image in pixels of the stored one, at least one in each direction."""
    (top, bottom), (left, right) = (
        (round(start * old / new), round((start + length) * old / new))
        for start, length, new, old in zip(box[:2], box[2:], size, stored, strict=True)
    )
    height, width = max(1, bottom - top), max(1, right - left)
    return min(top, stored[0] - height), min(left, stored[1] - width), height, width
