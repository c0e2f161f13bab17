"""A reader that leaves ends no command, and a full disk is still reported."""

import io
import os

import pytest

from saligraft.io.streams import unbreakable


class Broken(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe", text)

    def flush(self) -> None:
        raise OSError(5, "Input/output error")  # as a terminal that was closed


def test_errors_of_writing_are_ignored() -> None:
    print("lost", file=unbreakable(Broken()), flush=True)


def test_only_some_errors_are_ignored_where_output_matters() -> None:
    stream = unbreakable(Broken(), BrokenPipeError)
    print("lost", file=stream)
    with pytest.raises(OSError, match="Input/output error"):
        print("lost", file=stream, flush=True)


def test_a_pipe_without_a_reader_discards_what_is_buffered() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        print("lost", file=unbreakable(stream), flush=True)
        stream.flush()


def test_an_intact_stream_is_unchanged() -> None:
    stream = io.StringIO()
    wrapped = unbreakable(stream)
    assert wrapped is not None
    print("text", file=wrapped, flush=True)
    assert stream.getvalue() == "text\n"
    assert wrapped.isatty() is False
    assert unbreakable(None) is None
