"""Files are compared with the checksums of their sources."""

import hashlib
from pathlib import Path

import pytest

from saligraft.data.checksums import check_content, check_file


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_published_digest_passes_and_any_other_is_named(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = hashlib.new(algorithm, b"content").hexdigest()
    check_file(path, f"{algorithm}:{digest}")
    other = hashlib.new(algorithm, b"other").hexdigest()
    with pytest.raises(ValueError, match=rf"{path} is damaged .*: its {algorithm} is {digest}, not {other}"):
        check_file(path, f"{algorithm}:{other}")


def test_content_is_checked_without_reading_the_file(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar.gz" / "member"
    check_content(path, b"content", hashlib.md5(b"content").hexdigest())
    with pytest.raises(ValueError, match=rf"{path} is damaged or not the official file"):
        check_content(path, b"contend", hashlib.md5(b"content").hexdigest())
