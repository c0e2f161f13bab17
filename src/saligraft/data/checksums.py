"""Published checksums: a file that does not match the one of its official source is refused before it is used."""

import hashlib
from pathlib import Path

# md5 is what most of these sources publish. It tells damage and mix-ups, not an attacker who can make two files of one
# md5; so nothing here trusts a matching file either: archives are extracted, and pickles read, as hostile ones.


def check_content(path: Path, content: bytes | bytearray, md5: str) -> None:
    """Refuse content, read from `path`, that is not the official file's."""
    _compare(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), md5, "md5")


def check_file(path: Path, digest: str) -> None:
    """Refuse a file whose digest, "md5:..." or "sha256:...", is not the published one."""
    algorithm, expected = digest.split(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    _compare(path, found.hexdigest(), expected, algorithm)


def _compare(path: Path, found: str, expected: str, algorithm: str) -> None:
    if found != expected:
        raise ValueError(f"{path} is damaged or not the official file: its {algorithm} is {found}, not {expected}")
