"""AugMix's operations against Pillow's, which its authors use, sample by sample."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchvision", reason="AugMix's operations are torchvision's, an extra")

import numpy as np
from PIL import Image, ImageOps

from saligraft.methods.augmix.operations import OPERATIONS

HEIGHT, WIDTH = 24, 32
# What CIFAR-C and ImageNet-C test: training on any of it would make that test void.
CORRUPTIONS = (
    "noise",
    "blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic",
    "pixelate",
    "jpeg",
    "color",
)


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def turned(image: Image.Image, level: float, sign: float) -> Image.Image:
    return image.rotate(sign * int(level * 3), resample=Image.Resampling.BILINEAR)


PILLOW: dict[str, Callable[[Any, float, float], Any]] = {
    "autocontrast": lambda image, *_: ImageOps.autocontrast(image),
    "equalize": lambda image, *_: ImageOps.equalize(image),
    "posterize": lambda image, level, _: ImageOps.posterize(image, 4 - int(level * 4 / 10)),
    "solarize": lambda image, level, _: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
    "rotate": turned,
    "shear-x": lambda image, level, sign: affine(image, 1, sign * level * 0.03, 0, 0, 1, 0),
    "shear-y": lambda image, level, sign: affine(image, 1, 0, 0, sign * level * 0.03, 1, 0),
    "translate-x": lambda image, level, sign: affine(image, 1, 0, sign * int(level * WIDTH / 30), 0, 1, 0),
    "translate-y": lambda image, level, sign: affine(image, 1, 0, 0, 0, 1, sign * int(level * HEIGHT / 30)),
}


def pictures(count: int) -> Tensor:
    stream = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(
        torch.rand(count, 3, 6, 8, generator=stream), (HEIGHT, WIDTH), mode="bilinear"
    )
    return (smooth * 200 + 20).round() / 255


@pytest.mark.parametrize("name", OPERATIONS)
def test_is_pillows_to_a_grey_level(name: str) -> None:
    count = 12
    images = pictures(count)
    level = torch.linspace(0.1, 9.9, count)
    sign = torch.tensor([1.0, -1.0]).repeat(count // 2)
    before = images.clone()
    ours = OPERATIONS[name](images, level, sign)
    assert torch.equal(images, before)
    for place in range(count):
        image = Image.fromarray((images[place] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
        theirs = np.asarray(PILLOW[name](image, float(level[place]), float(sign[place])))
        difference = (ours[place] * 255 - torch.from_numpy(theirs.copy()).permute(2, 0, 1)).abs()
        assert float(difference.max()) <= 1.01


def test_none_is_among_the_test_corruptions() -> None:
    assert set(OPERATIONS) == set(PILLOW)
    overlap = [name for name in OPERATIONS if any(word in name.split("-") for word in CORRUPTIONS)]
    assert not overlap
