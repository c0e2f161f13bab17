"""Adversarial noise stays in its ball and in the range of pixels, and raises the loss."""

import pytest
import torch
from torch import Tensor, nn

from saligraft.methods.puzzlemix import PixelScale, adversarial, noisy_start

SCALE = PixelScale((0.5, 0.4, 0.6), (0.2, 0.3, 0.25))
RADIUS = 8 / 255


def pixels(images: Tensor) -> Tensor:
    return images * torch.tensor(SCALE.std).view(3, 1, 1) + torch.tensor(SCALE.mean).view(3, 1, 1)


def normalised_images() -> Tensor:
    stream = torch.Generator().manual_seed(0)
    values = torch.rand(6, 3, 8, 8, generator=stream).mul(1.2).sub(0.1).clamp(0, 1)  # some at the border
    return SCALE.normalised(values)


def test_start_is_uniform_in_the_ball_and_in_range() -> None:
    images = normalised_images()
    uniform = torch.rand(images.shape, generator=torch.Generator().manual_seed(1))
    moved = pixels(noisy_start(images, uniform, SCALE, RADIUS))
    assert moved.min() >= -1e-6
    assert moved.max() <= 1 + 1e-6
    expected = (pixels(images) + RADIUS * (2 * uniform - 1)).clamp(0, 1)
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_step_is_signed_clipped_and_shared(share: float) -> None:
    images = normalised_images()
    stream = torch.Generator().manual_seed(2)
    start = noisy_start(images, torch.rand(images.shape, generator=stream), SCALE, RADIUS)
    gradient = torch.randn(images.shape, generator=stream)
    result = adversarial(images, start, gradient, share, SCALE, RADIUS)
    before, noise = pixels(images), pixels(start) - pixels(images)
    step = (noise + (RADIUS + 2 / 255) * gradient.sign()).clamp(-RADIUS, RADIUS)
    torch.testing.assert_close(pixels(result), (before + share * step).clamp(0, 1), atol=1e-6, rtol=0)
    if share == 0:
        torch.testing.assert_close(result, images)


def test_raises_the_loss_it_was_made_for() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    images, labels = normalised_images(), torch.arange(6) % 5
    start = noisy_start(images, torch.rand(images.shape), SCALE, RADIUS).requires_grad_()
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(start), labels), start)
    noisy = adversarial(images, start.detach(), gradient, 1.0, SCALE, RADIUS)
    with torch.no_grad():
        before, after = (nn.functional.cross_entropy(model(x), labels) for x in (images, noisy))
    assert after > before


def test_one_number_serves_any_channels() -> None:
    images = torch.zeros(2, 1, 4, 4)
    start = noisy_start(images, torch.full_like(images, 0.75), PixelScale(0.5, 0.5), 0.1)
    torch.testing.assert_close(start, torch.full_like(images, 0.1))


def test_bad_input_is_named() -> None:
    images = normalised_images()
    with pytest.raises(ValueError, match=r"uniform must have the images' shape \(6, 3, 8, 8\), got \(6, 3, 8\)"):
        noisy_start(images, torch.rand(6, 3, 8), SCALE)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 2"):
        adversarial(images, images, images, 2, SCALE)
    with pytest.raises(ValueError, match="radius must be a finite number > 0, got 0"):
        adversarial(images, images, images, 1, SCALE, 0)
