"""SIGTERM, Ctrl-C and the end of the terminal (SIGHUP) end a run after its current step, with a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from accelerate import Accelerator

SIGNALS = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows


class RunStopped(KeyboardInterrupt):
    """A run was asked to stop, and has saved what it takes to go on."""

    def __init__(self, number: int, folder: Path | None) -> None:
        self.number, self.folder = number, folder
        super().__init__(f"stopped by {signal.Signals(number).name}")

    @property
    def exit_code(self) -> int:
        """As shells count it: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
        return 128 + self.number


class StopRequest:
    """Remembers that somebody asked to stop."""

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0: none came

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt  # the second Ctrl-C does not wait
        del frame
        self.number = number

    def agreed(self, accelerator: Accelerator, *, now: bool) -> int:
        """The signal that any process got, the same in all processes; 0 for none.

        Several processes agree only where all of them say `now`.
        """
        if accelerator.num_processes == 1:
            return self.number
        if not now:
            return 0
        numbers = accelerator.gather(torch.tensor([self.number], device=accelerator.device))
        return int(numbers.max())


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """Take note of the signals instead of dying of them; only the main thread can.

    One that is ignored, as SIGHUP under nohup, stays ignored.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, request) for number in heard}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
