"""Uniforms for a layer: from the global stream or from a generator."""

import pytest
import torch

from saligraft.regularizers.uniforms import uniforms

LIKE = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shape_type_and_range(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for source in (None, torch.Generator()):
        drawn = uniforms(shape, LIKE, dtype=dtype, generator=source)
        assert (drawn.shape, drawn.dtype) == (shape, dtype)
        assert 0 <= drawn.min() <= drawn.max() <= 1


def test_one_number_per_feature_comes_in_the_features_memory_order() -> None:
    assert uniforms(LIKE.shape, LIKE).is_contiguous(memory_format=torch.channels_last)


def test_the_global_stream_is_used_and_a_generator_leaves_it_alone(generator: torch.Generator) -> None:
    torch.manual_seed(3)
    first = uniforms((6,), LIKE)
    torch.manual_seed(3)
    from_generator = uniforms((6,), LIKE, generator=generator)
    assert torch.equal(uniforms((6,), LIKE), first)
    assert torch.equal(uniforms((6,), LIKE, generator=generator.manual_seed(0)), from_generator)
    assert not torch.equal(first, from_generator)
