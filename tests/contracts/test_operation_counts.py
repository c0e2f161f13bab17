"""How many torch operations one `apply` dispatches: exact, and on a GPU a kernel launch each."""

import pytest
import torch

from saligraft.experiments.bench_instruments import MOST_OPERATIONS, count_operations, operations_of


@pytest.mark.parametrize(("method", "most"), MOST_OPERATIONS.items())
def test_operations_of_one_apply(method: str, most: int) -> None:
    assert operations_of(method) <= most


def test_views_are_not_counted_and_copies_are() -> None:
    x = torch.ones(2, 3, 4)
    assert count_operations(lambda: x.view(6, 4).T[:, None].expand(4, 2, 6).unbind()) == 0
    assert count_operations(lambda: x.transpose(0, 2).contiguous()) == 1
    assert count_operations(lambda: (x + 1).sum().item()) == 3
