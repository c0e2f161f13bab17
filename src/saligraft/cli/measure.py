"""Measure the cost of a training step with each method, relative to plain training."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

NETWORK, BATCH_SIZE, SIZE = "wrn-10-1", 64, 32
ROUNDS, WARM_UP_ROUNDS, FEWEST_ROUNDS = 9, 2, 3


def measure_costs(rounds: int = ROUNDS, seconds: float = 12.0) -> dict[str, list[float]]:
    """CPU time of steps (mixing, passes, optimiser) of all methods and of plain training ("none"), on one thread.

    Args:
        rounds: As in `time_in_turn`.
        seconds: As in `time_in_turn`.
    """
    from saligraft.data.threads import one_thread
    from saligraft.methods import REGISTRY
    from saligraft.networks import build_network
    from saligraft.steps import training_step

    draws = torch.Generator().manual_seed(0)
    images = torch.rand(BATCH_SIZE, 3, SIZE, SIZE, generator=draws)
    labels = torch.randint(10, (BATCH_SIZE,), generator=draws)

    def optimizer_step(method: type[Any] | None) -> Callable[[], None]:
        torch.manual_seed(0)
        model = build_network(NETWORK, 10).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step = training_step(model, None if method is None else method(), generator=torch.Generator().manual_seed(0))

        def take() -> None:
            optimizer.zero_grad()
            step(images, labels).loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return take

    with torch.random.fork_rng(), one_thread():
        methods = {"none": None, **{name: entry.method for name, entry in REGISTRY.items()}}
        return time_in_turn({name: optimizer_step(method) for name, method in methods.items()}, rounds, seconds)


def time_in_turn(
    contenders: Mapping[str, Callable[[], None]], rounds: int, seconds: float = float("inf")
) -> dict[str, list[float]]:
    """Measure CPU seconds of each contender in each round; all run in every round, so that noise affects all.

    Args:
        contenders: What to time, by name.
        rounds: Largest number of rounds, after two for warm-up.
        seconds: Stop after this time, but not before three rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for number in range(WARM_UP_ROUNDS + rounds):
        if number >= WARM_UP_ROUNDS + FEWEST_ROUNDS and time.perf_counter() - start > seconds:
            break
        for name, run in contenders.items():
            began = time.process_time()
            run()
            times[name].append(time.process_time() - began)
    return {name: own[WARM_UP_ROUNDS:] for name, own in times.items()}
