"""What ends a run early: a signal, after the current step and with a checkpoint, or numbers that are not finite.

Signals are SIGTERM, Ctrl-C and the end of the terminal (SIGHUP).
"""

import contextlib
import math
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft.training.accelerator import sum_over_processes

SIGNALS = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows


class RunStopped(KeyboardInterrupt):
    """A signal stopped the run, which has saved a checkpoint to resume from, or came when it was finished.

    Args:
        signal_number: Number of the signal.
        folder: The run folder; None for a run that writes none.
        finished: Whether the run was finished.
    """

    def __init__(self, signal_number: int, folder: Path | None, *, finished: bool = False) -> None:
        self.signal_number, self.folder = signal_number, folder
        when = ", after the run was finished" if finished else ""
        super().__init__(f"stopped by {signal.Signals(signal_number).name}{when}")

    @property
    def exit_code(self) -> int:
        """Exit code by the shells' convention: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
        return 128 + self.signal_number


class StopRequest:
    """Signal handler that remembers the request to stop."""

    def __init__(self) -> None:
        self.signal_number = 0  # 0: none

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number == signal.SIGINT == signal_number:
            raise KeyboardInterrupt  # the second Ctrl-C does not wait
        del frame
        self.signal_number = signal_number

    def agreed(self, accelerator: Accelerator, *, now: bool) -> int:
        """Return the signal that any process received, the same in all processes; 0 for none.

        Args:
            accelerator: The run's accelerator.
            now: Several processes exchange their signals only if all of them pass True.
        """
        if accelerator.num_processes == 1:
            return self.signal_number
        if not now:
            return 0
        signal_numbers = accelerator.gather(torch.tensor([self.signal_number], device=accelerator.device))
        return int(signal_numbers.max())


@contextlib.contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Record signals in the request instead of dying from them; in threads other than the main one, do nothing.

    A signal that is ignored, as SIGHUP under nohup, stays ignored.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    caught = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in caught}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class DivergenceError(ValueError):
    """A loss or a weight is no longer a finite number.

    Args:
        epoch: Epoch in which it happened, counted from 0.
        details: What is not finite.
    """

    def __init__(self, epoch: int, details: str) -> None:
        super().__init__(f"training diverged in epoch {epoch + 1}{details}")


def mean_loss(losses: Sequence[Tensor], accelerator: Accelerator, epoch: int, *, skip: bool) -> float:
    """Average over the batches of all processes.

    Args:
        losses: Losses of the epoch's batches in this process.
        accelerator: The run's accelerator.
        epoch: Epoch, counted from 0.
        skip: Leave out losses that are not finite.
    """
    values = torch.stack(list(losses)).cpu().double()
    if skip:
        values = values[values.isfinite()]
    total, count = sum_over_processes(accelerator, [float(values.sum()), float(len(values))])
    if not count:
        raise DivergenceError(epoch, ": all of its steps were skipped")
    return total / count


def check_losses(losses: Sequence[Tensor], accelerator: Accelerator, epoch: int, batches: int) -> None:
    """Raise in all processes for the first batch whose loss is not finite in one of them.

    Args:
        losses: Losses of the epoch's batches so far, equally many in every process.
        accelerator: The run's accelerator.
        epoch: Epoch, counted from 0.
        batches: Batches of the entire epoch.
    """
    if not losses:
        return
    table = torch.stack(list(losses))[None]
    if accelerator.num_processes > 1:
        table = accelerator.gather(table)  # (processes, batches)
    broken = ~table.isfinite()
    if broken.any():
        batch = int(broken.any(dim=0).int().argmax())
        loss = float(table[broken[:, batch], batch][0])
        raise DivergenceError(
            epoch,
            f" at batch {batch + 1} of {batches} (loss {loss}): lower optimizer.lr, or set training.on_nonfinite=skip",
        )


def check_weights(network: nn.Module, accelerator: Accelerator, epoch: int) -> None:
    """Raise in all processes if a weight or running statistic of one is not finite.

    Args:
        network: This process's network.
        accelerator: The run's accelerator.
        epoch: Epoch, counted from 0.
    """
    values = [value for value in network.state_dict().values() if value.is_floating_point()]
    # Moved to the host together, once; summed there, as float32 would overflow and not every device has float64.
    largest = [value.abs().amax() for value in values if value.numel()]
    own = sum(torch.stack(largest).tolist()) if largest else 0.0
    [total] = sum_over_processes(accelerator, [own])
    if not math.isfinite(total):
        raise DivergenceError(epoch, f" (weights {total}): lower optimizer.lr")
