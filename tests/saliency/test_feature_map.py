"""S = Σ_c |A_c| (§4.3) against a NumPy twin."""

import numpy as np
import pytest
import torch
from torch import nn

from saligraft import SaliencyCapture, feature_saliency, saliency_source, salient_regions
from saligraft.config.method_section import ANY_DATA, MethodSection
from saligraft.experiments.bench_instruments import count_operations, peak_bytes
from saligraft.saliency.feature_map import sum_channels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_is_the_sum_of_absolute_channels(
    dtype: torch.dtype, memory_format: torch.memory_format, generator: torch.Generator
) -> None:
    features = torch.randn(3, 5, 4, 6, generator=generator).to(dtype, memory_format=memory_format)
    expected = np.abs(features.double().numpy()).sum(axis=1)
    saliency = feature_saliency(features)
    assert saliency.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    np.testing.assert_allclose(saliency.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_large_maps_are_summed_without_a_copy_of_the_batch(
    memory_format: torch.memory_format, generator: torch.Generator
) -> None:
    features = torch.randn(20, 512, 16, 16, generator=generator).contiguous(memory_format=memory_format)
    expected = np.abs(features.double().numpy()).sum(axis=1)
    np.testing.assert_allclose(feature_saliency(features).numpy(), expected, rtol=1e-5)
    assert peak_bytes(lambda: feature_saliency(features)) < features.nbytes / 5


class OnAnotherDevice(torch.Tensor):
    """Computes on the CPU, and says otherwise."""

    device = torch.device("cuda")


def test_other_devices_sum_in_one_operation(generator: torch.Generator) -> None:
    features = torch.randn(20, 512, 16, 16, generator=generator)
    elsewhere = features.as_subclass(OnAnotherDevice)
    torch.testing.assert_close(sum_channels(elsewhere).as_subclass(torch.Tensor), sum_channels(features))
    assert count_operations(lambda: sum_channels(elsewhere)) == 1


def test_the_mean_over_channels_everywhere_a_map_is_made(generator: torch.Generator) -> None:
    """S / C by NumPy, of features, a capture, a named source and a recipe; the softmax of S / C is one reading of T."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    images = torch.rand(4, 3, 10, 10, generator=generator)
    features = model[:2](images).detach()
    expected = np.abs(features.double().numpy()).mean(axis=1)
    section = MethodSection(
        name="saliency-grafting", options={"normalize": "none"}, saliency={"options": {"channels": "mean"}}
    ).saliency
    maps = (
        feature_saliency(features, channels="mean"),
        SaliencyCapture(model, channels="mean")(images)[1],
        saliency_source("feature-map", model, channels="mean")(images),
        section.build(model, ANY_DATA)(images),
    )
    for saliency in maps:
        np.testing.assert_allclose(saliency.numpy(), expected, rtol=1e-5)
    summed, averaged = feature_saliency(features), maps[0]
    shares = np.exp(expected / 0.02).reshape(4, -1)
    salient = shares / shares.sum(axis=1, keepdims=True) > 1 / 64
    assert np.array_equal(salient_regions(averaged, 0.02, normalize="none").flatten(1).numpy(), salient)
    assert not torch.equal(*(salient_regions(maps, 0.02, normalize="none") for maps in (summed, averaged)))
    assert torch.equal(*(salient_regions(maps, 0.2) for maps in (summed, averaged)))
    with pytest.raises(ValueError, match="channels must be one of 'sum', 'mean'; got 'max'"):
        feature_saliency(features, channels="max")


def test_is_detached() -> None:
    features = torch.randn(2, 3, 4, 4, requires_grad=True)
    assert not feature_saliency(features).requires_grad


def test_refuses_wrong_rank() -> None:
    with pytest.raises(ValueError, match=r"features must have shape \(B, C, H, W\), got \(3, 4, 4\)"):
        feature_saliency(torch.rand(3, 4, 4))
