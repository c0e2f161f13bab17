"""S = Σ_c |A_c| (§4.3) against a NumPy twin."""

import numpy as np
import pytest
import torch

from saligraft import feature_saliency


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


def test_is_detached() -> None:
    features = torch.randn(2, 3, 4, 4, requires_grad=True)
    assert not feature_saliency(features).requires_grad


def test_refuses_wrong_rank() -> None:
    with pytest.raises(ValueError, match=r"features must have shape \(B, C, H, W\), got \(3, 4, 4\)"):
        feature_saliency(torch.rand(3, 4, 4))
