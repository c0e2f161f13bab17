"""Unpack an archive: all its files end up in the given folder, or none at all.

Its checksum is to be verified before: a tar file that was cut between two of its files looks like a shorter one.
"""

import os
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath


def unpack(archive: Path, folder: Path, inside: str | None = None) -> None:
    """Make `folder` of the archive's folder `inside`, or of all of it; it appears whole, once everything is on disk.

    Names that lead out of the folder, links out of it, and devices are refused.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ImportError("unpacking archives safely needs Python 3.11.4 or later")
    aside = folder.with_name(f".{folder.name}.unpacking")
    shutil.rmtree(aside, ignore_errors=True)  # what a killed process left behind
    aside.mkdir(parents=True)
    try:
        _extract(archive, aside)
        source = aside / inside if inside else aside
        if not source.is_dir():
            raise ValueError(f"{archive} is damaged or not the official file: it holds no folder {inside}")
        if hasattr(os, "sync"):
            os.sync()
        source.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as packed:
                for name in packed.namelist():
                    _check_name(name)
                packed.extractall(folder)
        else:
            with tarfile.open(archive, "r|*") as stream:
                stream.extractall(folder, filter=_checked)
    except tarfile.FilterError as error:
        raise ValueError(f"{archive} is refused: {error}") from error
    # zipfile says RuntimeError of encryption and of ways to compress that it does not know
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, UnsafeNameError) as error:
        raise ValueError(f"{archive} is damaged or not the official file: {error}") from error


class UnsafeNameError(Exception):
    """A name in an archive leads out of the folder."""


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    _check_name(member.name)
    return tarfile.data_filter(member, folder)


def _check_name(name: str) -> None:
    """Stricter than the libraries, which quietly make some such names harmless: no official archive has any."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive or "\\" in name:
        raise UnsafeNameError(f"it names {name!r}, which leads out of the folder")
