"""Progress of a run: a bar with the time left on a terminal, plain lines elsewhere."""

import datetime
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from saligraft.io.streams import unbreakable
from saligraft.names import plural
from saligraft.training.results import EpochMetrics, EpochTiming, has_top5

SECONDS_BETWEEN_LINES = 30.0  # within an epoch, in a file or pipe


class Reporter:
    """Receives a run's progress from the trainer; subclasses choose what to show.

    Example:
        >>> from saligraft.training import EpochMetrics, Reporter
        >>> class Errors(Reporter):
        ...     def epoch(self, metrics, timing):
        ...         print(metrics.epoch, metrics.top1_error)
        >>> metrics = EpochMetrics(
        ...     epoch=1, lr=0.1, train_loss=2.3, test_loss=2.2, top1_error=80.0, top5_error=40.0
        ... )
        >>> Errors().epoch(metrics, timing=None)  # as `train(recipe, reporter=Errors())` does
        1 80.0
    """

    classes: int | None = None
    """Number of classes of the run; the trainer sets it before `start`."""

    def start(self, title: str, epochs: int, batches: int, done: tuple[int, int] = (0, 0)) -> None:
        """Begin or resume a run.

        Args:
            title: Title of the run.
            epochs: Epochs of the run.
            batches: Batches of all epochs together.
            done: Epochs and batches done before a resume.
        """

    def step(self) -> None:
        """Count one batch."""

    def note(self, text: str) -> None:
        """Show a line of text.

        Args:
            text: The line.
        """

    def epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        """Show the numbers of a finished epoch.

        Args:
            metrics: Errors and losses.
            timing: Seconds and images per second.
        """

    def close(self) -> None:
        """End, also after an error."""


class SilentReporter(Reporter):
    """Shows nothing: for tests, and for all processes but the main one.

    Example:
        >>> from saligraft.training import SilentReporter
        >>> SilentReporter().note("not printed")
    """


class PlainReporter(Reporter):
    """One line per epoch, and within long epochs one every half minute, for log files.

    Args:
        stream: Standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = unbreakable(stream or sys.stderr)

    def start(self, title: str, epochs: int, batches: int, done: tuple[int, int] = (0, 0)) -> None:
        self.epochs, self.batches, self.done = epochs, batches, done[1]
        self.epochs_done, self.done_before = done
        self.start_time = self.line_time = time.perf_counter()
        self.note(f"{title}: {_length(epochs, batches, done)}")

    def step(self) -> None:
        self.done += 1
        if time.perf_counter() - self.line_time >= SECONDS_BETWEEN_LINES:
            self.note(f"{self._epoch(self.epochs_done + 1)}  batch {self.done}/{self.batches}  {self._left()}")

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)
        self.line_time = time.perf_counter()

    def epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:
        self.epochs_done = metrics.epoch
        top5 = f"  top-5 error {metrics.top5_error:.2f} %" if has_top5(self.classes) else ""
        self.note(
            f"{self._epoch(metrics.epoch)}  lr {metrics.lr:.4g}"
            f"  train loss {metrics.train_loss:.4f}  test loss {metrics.test_loss:.4f}"
            f"  top-1 error {metrics.top1_error:.2f} %{top5}"
            f"  {timing.images_per_second:.0f} images/s  {self._left()}"
        )

    def _epoch(self, number: int) -> str:
        return f"epoch {number:{len(str(self.epochs))}}/{self.epochs}"

    def _left(self) -> str:
        seconds = (time.perf_counter() - self.start_time) / max(1, self.done - self.done_before)
        return f"left {datetime.timedelta(seconds=round(seconds * (self.batches - self.done)))}"


class BarReporter(Reporter):
    """The title, and below it a bar over all steps with the last epoch's test error and the time left.

    Args:
        console: Console to draw on.
    """

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )

    def start(self, title: str, epochs: int, batches: int, done: tuple[int, int] = (0, 0)) -> None:
        self.epochs = epochs
        self.note(f"{title}: {_length(epochs, batches, done)}")
        self.task: TaskID = self.progress.add_task(
            f"epoch {min(done[0] + 1, epochs)}/{epochs}", total=batches, completed=done[1]
        )
        self.progress.start()

    def note(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)

    def step(self) -> None:
        self.progress.advance(self.task)

    def epoch(self, metrics: EpochMetrics, timing: EpochTiming) -> None:  # noqa: ARG002  (the bar shows the time)
        state = f"epoch {min(metrics.epoch + 1, self.epochs)}/{self.epochs}  top-1 error {metrics.top1_error:.2f} %"
        self.progress.update(self.task, description=state)

    def close(self) -> None:
        self.progress.stop()


def _length(epochs: int, batches: int, done: tuple[int, int]) -> str:
    """How long the run is, and where it resumes."""
    if done[0] == epochs:
        resumed = ", all of them done"
    else:
        resumed = f", resumed after batch {done[1]} in epoch {done[0] + 1}" if done != (0, 0) else ""
    return f"{plural(epochs, 'epoch')}, {plural(batches, 'batch', 'batches')}{resumed}"


def make_reporter() -> Reporter:
    """Return a bar if stderr is a terminal, plain lines if it is a file or a pipe.

    Example:
        >>> from saligraft.training import Reporter, make_reporter
        >>> isinstance(make_reporter(), Reporter)
        True
    """
    console = Console(stderr=True, file=unbreakable(sys.stderr))
    return BarReporter(console) if console.is_terminal else PlainReporter()
