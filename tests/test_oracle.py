"""A whole `GraftingStep` against NumPy written from the paper: network, saliency, mask, graft, label and loss (§4, §5).

Nothing of the package computes the expected values; from `method.draw` come only the draws: partner, grid and P.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import saligraft as sg

Array = NDArray[np.float64]
B, K, HEIGHT, WIDTH = 7, 4, 18, 24
TEMPERATURE = 0.1


def make_network() -> nn.Sequential:
    """Small enough to be written out in `forward`: the feature map is the ReLU's, 9 by 12."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(3, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, K)
    )


def make_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with a bright spot each, so that saliency differs between regions; every class occurs."""
    stream = torch.Generator().manual_seed(seed)
    images = torch.rand(B, 3, HEIGHT, WIDTH, generator=stream)
    for image, top, left in zip(images, *torch.randint(0, 12, (2, B), generator=stream).tolist(), strict=True):
        image[:, top : top + 6, left : left + 9] += 2
    return images, torch.arange(B) % K


def forward(parameters: list[Array], images: Array) -> tuple[Array, Array]:
    """Feature map A (B, C, h, w) and logits (B, K)."""
    kernel, kernel_bias, weight, bias = parameters
    halved = images.reshape(len(images), 3, HEIGHT // 2, 2, WIDTH // 2, 2).mean(axis=(3, 5))
    features = np.maximum(np.einsum("oc,bchw->bohw", kernel[:, :, 0, 0], halved) + kernel_bias[:, None, None], 0)
    return features, features.mean(axis=(2, 3)) @ weight.T + bias


def resize_axis(maps: Array, size: int) -> Array:
    """Resize the last axis: the mean of all cells that a new cell touches or, upwards, linear interpolation."""
    old = maps.shape[-1]
    if size <= old:
        edges = [(place * old // size, -(-(place + 1) * old // size)) for place in range(size)]
        return np.stack([maps[..., start:end].mean(axis=-1) for start, end in edges], axis=-1)
    centres = (np.arange(size) + 0.5) * old / size - 0.5
    flat = maps.reshape(-1, old)
    return np.stack([np.interp(centres, np.arange(old), row) for row in flat]).reshape(*maps.shape[:-1], size)


def cross_entropy(logits: Array, targets: Array) -> float:
    log_probability = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-(targets * log_probability).sum(axis=1).mean())


class Graft(NamedTuple):
    images: Array
    mask: Array
    weight: Array
    loss: float


def importance(saliency: Array, visible: Array) -> float:
    return float(np.linalg.norm(saliency * visible) / np.linalg.norm(saliency))


def graft_by_the_paper(
    parameters: list[Array], images: Array, labels: NDArray[np.int64], partner: NDArray[np.int64], chosen: Array
) -> Graft:
    """Sample by sample: source i, destination j."""
    grid = chosen.shape[1]
    features, logits = forward(parameters, images)
    saliency = np.abs(features).sum(axis=1)  # §4.3
    saliency = np.swapaxes(resize_axis(np.swapaxes(resize_axis(saliency, grid), 1, 2), grid), 1, 2)
    row, column = np.arange(HEIGHT) * grid // HEIGHT, np.arange(WIDTH) * grid // WIDTH
    one_hot = np.eye(K)[labels]

    grafts, masks, weights, targets = [], [], [], []
    for i, j in enumerate(partner):
        scaled = np.exp(saliency[i] / np.linalg.norm(saliency[i]) / TEMPERATURE)
        shares = scaled / scaled.sum()  # S', Eq. 3
        salient = shares > shares.mean()  # S'', Eq. 4, with σ_mean
        mask = chosen[i] * salient  # M = P ⊙ S''
        shown = mask[row][:, column]
        grafts.append(shown * images[i] + (1 - shown) * images[j])  # φ
        source, destination = importance(saliency[i], mask), importance(saliency[j], 1 - mask)
        weight = source / (source + destination)  # λ, Eq. 5
        masks.append(mask)
        weights.append(weight)
        targets.append(weight * one_hot[i] + (1 - weight) * one_hot[j])  # ψ
    originals = cross_entropy(logits, one_hot)
    mixed = cross_entropy(forward(parameters, np.stack(grafts))[1], np.stack(targets))
    return Graft(np.stack(grafts), np.stack(masks), np.array(weights), (originals + mixed) / 2)


# Of the 9 by 12 map 3 divides both sides, 4 one and 8 neither; 10 enlarges one and shrinks the other; 16 enlarges both.
@pytest.mark.parametrize("grid", [3, 4, 8, 10, 16])
def test_a_warm_up_step_and_a_grafting_step_are_those_of_the_paper(grid: int) -> None:
    model = make_network()
    method = sg.SaliencyGrafting(temperature=TEMPERATURE, grids=(grid,))
    generator, same_draws = (torch.Generator().manual_seed(5) for _ in range(2))
    step = sg.GraftingStep(model, method, warmup_steps=1, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    images, labels = make_batch(seed=1)
    parameters = [parameter.detach().double().numpy() for parameter in model.parameters()]
    warm_up = step(images, labels)
    logits = forward(parameters, images.double().numpy())[1]
    np.testing.assert_allclose(warm_up.logits.detach(), logits, rtol=1e-4, atol=1e-5)
    assert warm_up.loss.item() == pytest.approx(cross_entropy(logits, np.eye(K)[labels]), rel=1e-5)
    assert warm_up.mixed is None
    warm_up.loss.backward()
    optimizer.step()

    images, labels = make_batch(seed=2)
    parameters = [parameter.detach().double().numpy() for parameter in model.parameters()]
    output = step(images, labels)
    drawn = method.draw(images, generator=same_draws)
    partner, chosen = drawn.partner.numpy(), drawn.chosen.double().numpy()
    assert chosen.shape == (B, grid, grid)
    assert (partner[partner] != np.arange(B)).any()  # else source and destination could be exchanged unseen

    expected = graft_by_the_paper(parameters, images.double().numpy(), labels.numpy(), partner, chosen)
    assert 0 < expected.mask.mean() < chosen.mean() < 1
    assert ((expected.weight > 0.01) & (expected.weight < 0.99)).sum() >= 3
    assert output.mixed is not None
    np.testing.assert_array_equal(output.mixed.mask, expected.mask > 0)
    np.testing.assert_allclose(output.mixed.images, expected.images, rtol=1e-6)
    np.testing.assert_allclose(output.mixed.source_weight, expected.weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(output.mixed.source_labels, labels)
    np.testing.assert_array_equal(output.mixed.destination_labels, labels.numpy()[partner])
    assert output.loss.item() == pytest.approx(expected.loss, rel=1e-5)
