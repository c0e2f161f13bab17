"""Parts of a batch: the same maps, of few samples at a time, on a CPU outside compilation alone."""

import pytest
import torch
from torch import Tensor

from saligraft.saliency.chunks import CACHED_VALUES, in_chunks


@pytest.mark.parametrize(
    ("values", "device", "parts"),
    [
        (CACHED_VALUES // 3, "cpu", [3, 3, 1]),
        (CACHED_VALUES * 5, "cpu", [1] * 7),  # one sample that is too large
        (CACHED_VALUES // 7, "cpu", [7]),
        (CACHED_VALUES // 3, "meta", [7]),
    ],
)
def test_parts_are_as_large_as_the_cache_allows(values: int, device: str, parts: list[int]) -> None:
    sizes = []

    def compute(part: Tensor) -> Tensor:
        sizes.append(len(part))
        return part * 2

    batch = torch.arange(7.0, device=device)
    maps = in_chunks(compute, batch, values)
    assert sizes == parts
    assert maps.shape == batch.shape
    if device == "cpu":
        assert torch.equal(maps, batch * 2)


def test_a_compiled_graph_has_one_part() -> None:
    def compute(part: Tensor) -> Tensor:
        assert len(part) == 7
        return part * 2

    compiled = torch.compile(in_chunks, backend="eager", fullgraph=True)
    assert torch.equal(compiled(compute, torch.arange(7.0), CACHED_VALUES), torch.arange(7.0) * 2)
