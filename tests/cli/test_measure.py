"""Costs of methods are measured in turn, and leave no trace."""

import pytest
import torch

from saligraft.cli.measure import measure_costs, time_in_turn
from saligraft.methods import REGISTRY


@pytest.mark.slow
def test_a_measurement_covers_all_methods_and_leaves_no_trace() -> None:
    torch.manual_seed(3)
    expected, threads = torch.rand(2), torch.get_num_threads()
    torch.manual_seed(3)
    costs = measure_costs(rounds=1)
    assert torch.equal(torch.rand(2), expected)
    assert torch.get_num_threads() == threads
    assert list(costs) == ["none", *REGISTRY]
    assert all(len(times) == 1 and times[0] > 0 for times in costs.values())


def test_every_contender_runs_in_every_round_and_time_ends_the_rounds() -> None:
    order: list[str] = []
    contenders = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    assert [len(times) for times in time_in_turn(contenders, rounds=4).values()] == [4, 4]
    assert order == ["a", "b"] * 6  # two rounds to warm up
    assert len(time_in_turn(contenders, rounds=9, seconds=0)["a"]) == 3
