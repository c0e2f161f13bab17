"""Files that are whole or not there."""

from pathlib import Path

import pytest

from saligraft.training import files
from saligraft.training.files import write_whole


def test_the_old_text_stays_until_the_new_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device", str(handle))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    monkeypatch.undo()
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
