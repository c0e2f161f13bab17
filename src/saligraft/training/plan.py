"""What a run would take, from a few measured steps: speed, memory and time to the end, before anyone pays for it."""

from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from saligraft.config.recipe import Recipe
from saligraft.training.accelerator import make_accelerator
from saligraft.training.run_folder import machine_facts
from saligraft.training.run_state import Position, capture
from saligraft.training.session import Session, prepare
from saligraft.training.stretches import Stretch, images_tested_per_second, measure_stretches

STEPS = 10
SECONDS = 60.0  # of a slow machine's patience


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run's course as far as a few steps tell; checkpoints and the report are not in its time."""

    stretches: tuple[Stretch, ...]
    epochs: int
    test_images: int
    test_images_per_second: float
    checkpoint_bytes: int
    kept_checkpoints: int
    machine: dict[str, Any]

    @property
    def test_seconds(self) -> float:
        """Of all tests together, one after each epoch."""
        return self.epochs * self.test_images / self.test_images_per_second

    @property
    def seconds(self) -> float:
        return sum(stretch.seconds for stretch in self.stretches) + self.test_seconds


def plan(recipe: Recipe, steps: int = STEPS, seconds: float = SECONDS) -> Plan:
    """Set the run up, take some steps of each of its stretches and test some batches; writes nothing.

    A stretch is given up to `steps` measured steps, fewer once they took `seconds`.
    """
    accelerator = make_accelerator(recipe)
    # As in a run, whose speed these settings change.
    with torch.random.fork_rng(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        session = prepare(recipe, accelerator)
        return Plan(
            stretches=measure_stretches(session, steps, seconds),
            epochs=recipe.training.epochs,
            test_images=len(session.test_data),
            test_images_per_second=images_tested_per_second(session),
            checkpoint_bytes=_checkpoint_bytes(session),
            kept_checkpoints=recipe.training.keep_checkpoints,
            machine=machine_facts(accelerator.device, accelerator.num_processes),
        )


def _checkpoint_bytes(session: Session) -> int:
    """Of the tensors, which is nearly all; those of each process's own count for each."""
    captured = capture(session, Position(), {})
    shared, own = (sum(value.nbytes for value in part.values()) for part in (captured.shared, captured.own))
    return int(shared + own * session.accelerator.num_processes)


def print_plan(found: Plan, console: Console | None = None) -> None:
    """Show it as a table, a row for each stretch, and what it comes to."""
    console = console or Console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, title in enumerate(("epochs", "batch", "px", "steps", "images/s", "wait", "memory", "time")):
        table.add_column(title, justify="right" if place else "left", no_wrap=True)
    for stretch in found.stretches:
        table.add_row(*_cells(stretch))
    tests = ("", "", "", f"{found.test_images_per_second:,.0f}", "", "", duration(found.test_seconds))
    table.add_row(f"{found.epochs} tests", *tests)
    console.print(table)
    console.print("[dim]wait: share of the time in which a step waits for data; plain: without mixing[/dim]\n")
    kept = f"the newest {found.kept_checkpoints} are kept" if found.kept_checkpoints > 1 else "the newest is kept"
    console.print(f"time to the end:  [bold]{duration(found.seconds)}[/bold]", highlight=False)
    console.print(f"measured on:      {_machine(found.machine)}", highlight=False)
    console.print(f"checkpoint:       {size(found.checkpoint_bytes)}; {kept}", highlight=False)


def _cells(stretch: Stretch) -> tuple[str, ...]:
    height, width = stretch.size
    return (
        f"{stretch.first_epoch + 1} to {stretch.first_epoch + stretch.epochs}{'' if stretch.mixes else ' plain'}",
        f"{stretch.batch_size:,}",
        f"{height}" if height == width else f"{height}×{width}",
        f"{stretch.epochs * stretch.steps:,}",
        f"{stretch.images_per_second:,.0f}",
        f"{stretch.wait_seconds / stretch.step_seconds:.0%}",
        "unknown" if stretch.peak_memory is None else size(stretch.peak_memory),
        duration(stretch.seconds),
    )


def _machine(facts: dict[str, Any]) -> str:
    processes, threads = facts["processes"], facts["threads"]
    parts = [f"{facts['device']} ({facts['device_name']})"]
    if processes > 1:
        parts.append(f"{processes} processes")
    if facts["device"] == "cpu":
        parts.append(f"{threads} thread{'s' * (threads > 1)}{' each' * (processes > 1)}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Two units at most: 3 d 4 h, 5 min 20 s, 45 s."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest = max(1, round(seconds))
    for place, (name, length) in enumerate(units):
        if rest >= length and name != "s":
            below, shorter = units[place + 1]
            count = round(rest / shorter)
            whole, part = divmod(count, length // shorter)
            return f"{whole} {name} {part} {below}" if part else f"{whole} {name}"
    return f"{rest} s"


def size(count: int) -> str:
    """Bytes in MB or GB of a thousand each."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
