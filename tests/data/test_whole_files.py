"""Files that are whole or not there."""

from pathlib import Path

import pytest

from saligraft.data import whole_files
from saligraft.data.whole_files import write_whole


def test_the_old_text_stays_until_the_new_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device", str(handle))

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
