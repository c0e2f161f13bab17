"""A bar for each training that runs in another process, from the lines its run folder has so far."""

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from saligraft.training.run_folder import METRICS


class TrainingBars:
    """Shown on a terminal alone; whoever waits calls `update` now and then."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("epoch {task.completed}/{task.total}"),
        )
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True))
        self.progress = Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal)
        self.tasks: dict[Path, TaskID] = {}

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def add(self, folder: Path, title: str, epochs: int) -> None:
        self.tasks[folder] = self.progress.add_task(title, total=epochs)

    def update(self) -> None:
        for folder, task in self.tasks.items():
            metrics = folder / METRICS
            if metrics.is_file():
                self.progress.update(task, completed=metrics.read_bytes().count(b"\n"))

    def remove(self, folder: Path) -> None:
        self.progress.remove_task(self.tasks.pop(folder))
