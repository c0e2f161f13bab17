"""What a run shows."""

import io
import re
import sys

import pytest
from rich.console import Console

from saligraft.training.progress import BarReporter, PlainReporter, make_reporter
from saligraft.training.results import EpochMetrics, EpochTiming

METRICS = EpochMetrics(2, 0.05, 1.5, 1.25, 40.0, 10.0)
TIMING = EpochTiming(2, 2.0, 512.3, 0.5, 1.9)


def test_plain_lines_say_all_there_is_to_say() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    reporter.start("a run", 10, 3, done=(0, 0))
    for _ in range(3):
        reporter.step()
    reporter.epoch(METRICS, TIMING)
    reporter.close()
    first, second = stream.getvalue().splitlines()
    assert first == "a run: 10 epochs, 3 batches"
    for words in ("epoch  2/10", "lr 0.05", "train loss 1.5000", "top-1 error 40.00 %", "512 images/s", "left 0:00:00"):
        assert words in second


def test_plain_lines_within_an_epoch_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("saligraft.training.progress.time.perf_counter", lambda: float(next(clock)))
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    reporter.start("a run", 1, 1000)
    for _ in range(9):  # each reads the clock once, and a line twice more
        reporter.step()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "a run: 1 epoch, 1000 batches"
    assert [line.partition("  left")[0] for line in lines[1:]] == [f"epoch 1/1  batch {n}/1000" for n in (3, 6, 9)]


def test_the_bar_fits_80_columns_with_the_time_left() -> None:
    stream = io.StringIO()
    reporter = BarReporter(Console(file=stream, force_terminal=True, width=80))
    reporter.start("CIFAR-100, WRN-28-10, Saliency Grafting with remembered maps", 400, 100_000, done=(100, 25_000))
    reporter.epoch(METRICS, TIMING)
    reporter.close()
    *_, last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").strip().splitlines()
    assert re.fullmatch(r"epoch 3/400  top-1 error 40.00 % [━╸╺ ]{10,} \d:\d\d:\d\d left [\d:-]+ *", last)


def test_the_bar_counts_steps_and_shows_the_error() -> None:
    stream = io.StringIO()
    reporter = BarReporter(Console(file=stream, force_terminal=True, width=100))
    reporter.start("a run", 2, 6, done=(1, 2))
    for _ in range(4):
        reporter.step()
    reporter.note("a [note]")
    reporter.epoch(METRICS, TIMING)
    reporter.close()
    assert reporter.progress.finished
    assert "epoch 2/2  top-1 error 40.00 %" in stream.getvalue()
    assert "a [note]" in stream.getvalue()


def test_a_resumed_run_says_where_it_goes_on() -> None:
    stream = io.StringIO()
    reporter = PlainReporter(stream)
    reporter.start("a run", 10, 30, done=(1, 5))
    reporter.step()
    reporter.note("a note")
    assert stream.getvalue() == "a run: 10 epochs, 30 batches, resumed after batch 5 in epoch 2\na note\n"


class Gone(io.StringIO):
    """A terminal that was closed, or a pipe without a reader."""

    def write(self, text: str) -> int:
        raise OSError(5, text)

    def isatty(self) -> bool:
        return self.name == "terminal"


@pytest.mark.parametrize(("name", "kind"), [("terminal", BarReporter), ("pipe", PlainReporter)])
def test_a_run_goes_on_though_nobody_reads(name: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Gone()
    stream.name = name
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    reporter = make_reporter()
    assert isinstance(reporter, kind)
    reporter.start("a run", 10, 30)
    reporter.step()
    reporter.note("a note")
    reporter.epoch(METRICS, TIMING)
    reporter.close()


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(make_reporter(), PlainReporter)
