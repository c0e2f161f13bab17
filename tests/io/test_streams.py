"""Nobody has to listen."""

import io

from saligraft.io.streams import unbreakable


class Broken(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe", text)

    def flush(self) -> None:
        raise OSError(5, "Input/output error")  # as a terminal that was closed


def test_errors_of_writing_are_ignored() -> None:
    print("lost", file=unbreakable(Broken()), flush=True)


def test_an_intact_stream_is_unchanged() -> None:
    stream = io.StringIO()
    wrapped = unbreakable(stream)
    assert wrapped is not None
    print("text", file=wrapped, flush=True)
    assert stream.getvalue() == "text\n"
    assert wrapped.isatty() is False
    assert unbreakable(None) is None
