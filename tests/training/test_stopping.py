"""Signals are noted, not died of; the handlers before are put back."""

import math
import signal
import threading
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from saligraft.training.stopping import SIGNALS, DivergenceError, RunStopped, catch_stop_signals, check_weights


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_is_noted_and_counts_as_shells_do(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with catch_stop_signals() as request:
        assert request.agreed(Accelerator(cpu=True), now=False) == 0
        signal.raise_signal(number)
        assert request.agreed(Accelerator(cpu=True), now=False) == number
        assert RunStopped(number, None).exit_code == code
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_second_ctrl_c_does_not_wait() -> None:
    with catch_stop_signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As SIGHUP under nohup, where a run is to outlive its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_stop_signals() as request:
            signal.raise_signal(signal.SIGHUP)
            assert request.signal_number == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_leave_signals_alone() -> None:
    handlers: list[object] = []

    def train() -> None:
        with catch_stop_signals() as request:
            handlers.extend([signal.getsignal(signal.SIGTERM), request.signal_number])

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert handlers == [before, 0]


class NoDoubles(TorchDispatchMode):
    """Refuses results in float64, which MPS does not have."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        assert not (isinstance(result, torch.Tensor) and result.dtype == torch.float64), func
        return result


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_any_weight_or_statistic_that_is_not_finite_is_found(value: float) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    nn.init.constant_(network[0].weight, torch.finfo(torch.float32).max)  # finite, although its sum is not
    with NoDoubles():
        check_weights(network, Accelerator(cpu=True), 0)
        network[1].running_var[1] = value
        with pytest.raises(DivergenceError, match=rf"in epoch 1 \(weights {abs(value)}\)"):
            check_weights(network, Accelerator(cpu=True), 0)
