"""Read or unpack an archive; unpacking is atomic: all files appear in the target folder, or none.

Verify its checksum first: a tar file truncated between two of its files looks like a complete, shorter one.

Only plain files and folders are read, and written by this module. From `tarfile` only the parser of a single header is
used: links can redirect its extraction out of the folder (CVE-2025-4517, before Python 3.11.13), and its reader loads
headers of any size into memory.
"""

import gzip
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from saligraft.io.files import atomic_path

MOST_MEMBERS = 250_000  # twice the members of Tiny-ImageNet, the largest count of the official archives
MOST_BYTES = 8 << 30  # unpacked; twice the size of Speech Commands v0.02, the largest
_MOST_HEADER_BYTES = 1 << 14  # of a tar header with a long name: several times the longest path of any system
_CHUNK_BYTES = 1 << 20
# Entries of a tar file that contain the name of the next entry, and where to find it in them.
_LONG_NAMES = {
    tarfile.GNUTYPE_LONGNAME: re.compile(rb"([^\0]+)"),
    tarfile.XHDTYPE: re.compile(rb"(?:^|\n)\d+ path=([^\n]+)\n"),
}

Content = Iterator[bytes]


def unpack(archive: Path, folder: Path, inside: str | None = None) -> None:
    """Unpack an archive into a new folder, which appears once everything is on disk.

    Args:
        archive: A .zip or .tar.gz file.
        folder: The folder to create.
        inside: The folder in the archive to unpack; None for all of it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder) as aside:
        target = aside.with_name(f"all of {aside.name}") if inside else aside
        target.mkdir()
        with damage_named(archive):
            for name, content in members(archive):
                path = target / name
                (path if content is None else path.parent).mkdir(parents=True, exist_ok=True)
                if content is not None:
                    with path.open("wb") as file:
                        file.writelines(content)
        if inside:
            if not (target / inside).is_dir():
                raise ValueError(f"{archive} is damaged or not the official file: it contains no folder {inside}")
            (target / inside).replace(aside)
        if hasattr(os, "sync"):
            os.sync()


@contextmanager
def damage_named(archive: Path) -> Iterator[None]:
    """Turn any error of reading an archive into a ValueError that names the archive.

    Args:
        archive: The file to name.
    """
    try:
        yield
    # zipfile raises RuntimeError for encryption and for features that it does not support
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:
        raise ValueError(f"{archive} is damaged or not the official file: {error}") from error


def members(archive: Path) -> Iterator[tuple[str, Content | None]]:
    """Iterate over the files and folders of an archive.

    Links, devices, paths outside the folder, and archives larger than any official one are refused.

    Args:
        archive: A .zip or .tar.gz file.

    Yields:
        Name and content of each file, and name and None of each folder. A content can be read until the next member
        is requested.
    """
    read = _zip_members if archive.suffix == ".zip" else _tar_members
    left = MOST_BYTES
    for number, (name, size, content) in enumerate(read(archive)):
        path = PurePosixPath(name)
        # Stricter than the libraries, which silently sanitise some such names: no official archive has any.
        if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive or "\\" in name or "\0" in name:
            raise ValueError(f"it contains {name!r}, which is outside the folder")
        if number == MOST_MEMBERS or not 0 <= size <= left:
            raise ValueError(f"it contains more than {MOST_MEMBERS:,} files or {MOST_BYTES:,} bytes")
        left -= size
        yield name, content


def _zip_members(archive: Path) -> Iterator[tuple[str, int, Content | None]]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{info.filename!r} is neither file nor folder")
            # zipfile does not bound the memory of other compression methods
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{info.filename!r} is compressed by method {info.compress_type}, not deflate")
            with packed.open(info) as file:
                yield info.filename, info.file_size, None if info.is_dir() else _chunks(file, info.file_size)


def _tar_members(archive: Path) -> Iterator[tuple[str, int, Content | None]]:
    with gzip.open(archive) as stream:
        long_name = ""
        while any(block := stream.read(tarfile.BLOCKSIZE)):
            head = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            name, size = long_name or head.name, 0 if head.isdir() else head.size
            content = _chunks(stream, size)
            if head.isdir() or head.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                yield name, size, None if head.isdir() else content
                long_name = ""
            elif head.type in _LONG_NAMES and 0 <= size <= _MOST_HEADER_BYTES:
                match = _LONG_NAMES[head.type].search(b"".join(content))
                long_name = match[1].decode("utf-8", "surrogateescape") if match else long_name
            else:
                raise ValueError(f"{name!r} is neither file nor folder, or its header is too long")
            for _ in content:
                pass  # skip what the caller did not read
            stream.read(-size % tarfile.BLOCKSIZE)


def _chunks(file: IO[bytes] | gzip.GzipFile, size: int) -> Content:
    """Yield the next `size` bytes in small blocks."""
    while size:
        chunk = file.read(min(size, _CHUNK_BYTES))
        if not chunk:
            raise EOFError(f"it ends {size:,} bytes early")
        size -= len(chunk)
        yield chunk
