"""Terminals, pipes and logs that may fail: a command loses its output there, but completes its work."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class _Unbreakable:
    """A text stream that ignores some errors of writing."""

    def __init__(self, stream: TextIO, ignored: type[OSError]) -> None:
        self._stream, self._ignored = stream, ignored

    def write(self, text: str) -> int:
        with self._ignoring():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._ignoring():
            self._stream.flush()

    @contextmanager
    def _ignoring(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._discard()
        except self._ignored:
            pass

    def _discard(self) -> None:
        """Redirect a pipe without a reader: Python would report what is still in its buffer at exit."""
        with suppress(OSError):  # a stream without a file
            target, null = self._stream.fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, target)
            os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unbreakable(stream: TextIO | None, ignored: type[OSError] = OSError) -> TextIO | None:
    """Return the stream with write errors ignored; None, Python's value for a closed stream, stays None.

    Args:
        stream: Stream to write to.
        ignored: Errors to ignore; a pipe without a reader is always ignored.
    """
    return None if stream is None else cast(TextIO, _Unbreakable(stream, ignored))
