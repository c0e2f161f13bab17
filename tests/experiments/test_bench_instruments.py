"""The benchmark's instruments: fair turns, exact counts and peaks, nothing changed behind."""

import torch

from saligraft.experiments import bench_instruments
from saligraft.experiments.bench_instruments import peak_bytes, time_in_turn


def test_every_contender_runs_in_every_round_and_time_ends_the_rounds() -> None:
    order: list[str] = []
    contenders = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    assert [len(times) for times in time_in_turn(contenders, rounds=4).values()] == [4, 4]
    assert order == ["a", "b"] * 6  # two rounds to warm up
    assert len(time_in_turn(contenders, rounds=9, seconds=0)["a"]) == 3


def test_peak_counts_what_lives_at_once() -> None:
    x = torch.ones(1000)  # 4000 bytes, not new
    assert peak_bytes(lambda: x.view(10, 100)[2:]) == 0
    assert peak_bytes(lambda: x.clone().add_(1)) == 4000
    assert peak_bytes(lambda: ((x + 1) * 2).exp().exp()) == 8000  # never more than two
    assert peak_bytes(lambda: [x + 1, x + 2, x + 3]) == 12000
    assert peak_bytes(lambda: torch.where(x > 0, x, -x)) == 9000  # mask of bytes, -x and the result


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with bench_instruments.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_facts_name_commit_machine_versions_and_threads() -> None:
    facts = bench_instruments.facts()
    assert facts.keys() == {"commit", "processor", "system", "load", "threads", "versions"}
    assert facts["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert facts["threads"] == torch.get_num_threads()
    assert all(facts[name] for name in ("commit", "processor", "system", "versions"))
