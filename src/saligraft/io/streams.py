"""Terminals, pipes and logs that may fail: a run loses its output there, but continues."""

from contextlib import suppress
from typing import Any, TextIO, cast


class _Unbreakable:
    """A text stream whose write errors are ignored."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unbreakable(stream: TextIO | None) -> TextIO | None:
    """Return the stream with write errors ignored; None, Python's value for a closed stream, stays None."""
    return None if stream is None else cast(TextIO, _Unbreakable(stream))
