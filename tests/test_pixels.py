"""Images are normalised channel by channel, in their own dtype, and back."""

import pytest
import torch

from saligraft.pixels import denormalized, normalized

MEAN, STD = (0.25, 0.5, 0.75), (0.5, 0.25, 0.125)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_each_channel_by_its_own_statistics(dtype: torch.dtype, lead: tuple[int, ...]) -> None:
    pixels = torch.tensor(MEAN, dtype=dtype)[:, None, None].expand(*lead, 3, 4, 5)
    assert torch.equal(normalized(pixels, MEAN, STD), torch.zeros_like(pixels))
    one_above = torch.ones_like(pixels)
    expected = pixels + torch.tensor(STD, dtype=dtype)[:, None, None]
    assert torch.equal(denormalized(one_above, MEAN, STD), expected)
    assert torch.equal(normalized(expected, MEAN, STD), one_above)


def test_one_value_serves_all_channels() -> None:
    images = torch.rand(2, 3, 4, 5)
    assert torch.equal(normalized(images, [0.5], [0.25]), (images - 0.5) / 0.25)
    assert torch.equal(denormalized(images, [0.5], [0.25]), images * 0.25 + 0.5)
