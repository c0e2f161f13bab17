"""Folders of class folders, the form in which most picture collections come."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from saligraft.data.file_names import FileNames

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))
_OF_THE_SYSTEM = frozenset(("Thumbs.db", "desktop.ini", "__MACOSX"))


def class_names(folder: Path) -> tuple[str, ...]:
    """Names of the folders in `folder`, sorted; hidden ones are no classes."""
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name)))


def is_image(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def loose_image(folder: Path) -> str | None:
    """The first image that lies in `folder` itself, and so in no class."""
    with os.scandir(folder) as entries:
        return min(
            (entry.name for entry in entries if is_image(entry.name) and not is_hidden(entry.name)), default=None
        )


def files_of(folder: Path, class_name: str) -> list[str]:
    """Images of a class, in nested folders too, as sorted paths in `folder`; any other file is an error."""
    files = sorted(_walk(folder, class_name))
    if not files:
        raise ValueError(f"class folder {folder / class_name} must hold images, got none")
    return files


def labelled_files(folder: Path, classes: tuple[str, ...]) -> tuple[FileNames, Tensor]:
    """Every image under `folder`, class by class, and its label (N,); a folder not among `classes` is an error."""
    found = class_names(folder)
    for name in found:
        if name not in classes:
            raise ValueError(f"class folder {folder / name} must be one of the {len(classes)} classes of train")
    files = [files_of(folder, name) for name in found]
    labels = [torch.full((len(part),), classes.index(name)) for name, part in zip(found, files, strict=True)]
    return FileNames(name for part in files for name in part), torch.cat(labels) if labels else torch.empty(0).long()


def _walk(folder: Path, inner: str) -> Iterator[str]:
    with os.scandir(folder / inner) as scan:
        entries = [entry for entry in scan if not is_hidden(entry.name)]
    for entry in entries:
        path = f"{inner}/{entry.name}"
        if entry.is_dir():
            yield from _walk(folder, path)
        elif not is_image(entry.name):
            raise ValueError(f"class folders must hold images alone ({', '.join(sorted(SUFFIXES))}), got {entry.path}")
        elif not entry.is_file():
            raise ValueError(f"image file {entry.path} is missing: a link that leads nowhere")
        else:
            yield path


def is_hidden(name: str) -> bool:
    """Whether a name is of what systems leave among a user's files."""
    return name.startswith(".") or name in _OF_THE_SYSTEM
