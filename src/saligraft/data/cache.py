"""A cache of decoded samples: a uint8 array on disk, keyed by content, memory-mapped and shared by all processes.

`cached("tiny-imagenet-train", key, blocks)` returns a tensor (N, ...) uint8 over a file. If that file is missing or
damaged, `blocks()` yields the samples in consecutive pieces (n, ...), so that they are never in memory twice. The key
must depend on everything that determines the samples: the bytes of the source files and how they are decoded;
`content_key` and `files_key` compute one.

A file is written to a temporary name, synced and renamed, so it is complete or absent. One process builds it while
others wait.
A file starts with one line of JSON; its checksum is verified at each load, and nothing in it is ever unpickled.
The tensor is private to its process: writing to it changes no file. All files may be deleted at any time.
"""

import hashlib
import json
import math
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from saligraft.io.files import atomic_path
from saligraft.io.locks import locked

HEADER_BYTES = 4096  # a page, so that samples start aligned
FORMAT = "saligraft cache 2"
_CHUNK_BYTES = 1 << 20

Blocks = Callable[[], Iterable[Tensor]]


def cached(name: str, key: str, blocks: Blocks) -> Tensor:
    """Return the samples that `blocks` yields, from the cache if possible.

    If the cache cannot be used, a warning says so and the samples are kept in memory.

    Args:
        name: What the samples are, e.g. "cifar100-train"; part of the file name.
        key: Identifies their content and how they are decoded.
        blocks: Decodes the samples, in pieces (n, ...) uint8 of one shape.

    Returns:
        All samples (N, ...) uint8.
    """
    folder: Path | None = None
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{key}.bin"
        samples = _read(path, key)
        return _build(path, key, blocks) if samples is None else samples
    except _SourceError as error:
        raise error.args[0] from error.args[0].__cause__
    except (OSError, RuntimeError) as error:  # pathlib raises RuntimeError for a user without a home
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        warnings.warn(
            f"the cache {folder or 'folder'} cannot be used ({reason}), so samples are decoded and kept in memory; "
            "SALIGRAFT_CACHE sets another folder",
            stacklevel=2,
        )
        return torch.cat([_checked(block) for block in blocks()])


def cache_folder() -> Path:
    """Return $SALIGRAFT_CACHE, or `saligraft` in the platform's folder for caches."""
    chosen = os.environ.get("SALIGRAFT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "saligraft" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "saligraft"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # its specification says to ignore relative paths
    return (base if base.is_absolute() else Path.home() / ".cache") / "saligraft"


def content_key(parts: Iterable[str | bytes]) -> str:
    """Compute a key of what the samples depend on; ("ab", "c") and ("a", "bc") differ.

    Args:
        parts: Texts or bytes that together determine the samples.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


def files_key(decoding: str, root: Path, names: Iterable[str]) -> str:
    """Compute a key of files, by name, order and content, and of how they are decoded.

    All bytes are read, since sizes and modification times cannot distinguish a restored or partially copied folder from
    a complete one; reading small images costs a fraction of decoding them.

    Args:
        decoding: Describes how files become samples.
        root: The folder of the files.
        names: Their paths under `root`.
    """
    contents = ((name, (root / name).read_bytes()) for name in names)
    return content_key(chain([decoding], chain.from_iterable(contents)))


class _SourceError(Exception):
    """Wraps an error of the source files, which, unlike one of the cache, no fallback may hide."""


def _checked(block: Tensor) -> Tensor:
    if block.dtype != torch.uint8 or block.ndim < 2:
        raise TypeError(f"a block must be uint8 of shape (n, ...), got {block.dtype} {tuple(block.shape)}")
    return block.contiguous()


def _checked_blocks(blocks: Blocks) -> Iterator[Tensor]:
    shape = None
    try:
        for block in map(_checked, blocks()):
            shape = shape or block.shape[1:]
            if block.shape[1:] != shape:
                raise ValueError(f"blocks must hold samples of one shape {tuple(shape)}, got {tuple(block.shape[1:])}")
            yield block
    except Exception as error:
        raise _SourceError(error) from error


def _build(path: Path, key: str, blocks: Blocks) -> Tensor:
    """Write the file unless another process has done so while this one waited for the lock."""
    with locked(path.with_name(f"{path.name}.lock")):
        samples = _read(path, key, warn=True)
        if samples is not None:
            return samples
        with atomic_path(path) as aside, aside.open("xb") as file:
            _write(file, key, blocks)
    samples = _read(path, key)
    if samples is None:
        raise OSError("the written file cannot be read back")
    return samples


def _write(file: BinaryIO, key: str, blocks: Blocks) -> None:
    """Write the samples first, then the header, which holds their shape and checksum."""
    file.seek(HEADER_BYTES)
    count, checksum, shape = 0, 0, torch.Size()
    for block in _checked_blocks(blocks):
        content = block.numpy().data.cast("B") if block.numel() else b""
        count, checksum, shape = count + len(block), zlib.crc32(content, checksum), block.shape[1:]
        file.write(content)
    sizes = [count, *shape]
    header = {"format": FORMAT, "key": key, "shape": sizes, "crc32": _with_shape(checksum, sizes)}
    file.truncate(max(file.tell(), HEADER_BYTES))
    file.seek(0)
    file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n")


def _read(path: Path, key: str, warn: bool = False) -> Tensor | None:
    """Map the samples of a complete file; None if it is missing or damaged, optionally with a warning."""
    try:
        if path.is_fifo():
            raise ValueError("it is a pipe")  # opening it would wait for a writer
        with path.open("rb") as file:
            shape = _verified_shape(file, key)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if warn:
            warnings.warn(f"the cache file {path} is damaged ({error}) and is rebuilt", stacklevel=4)
        return None
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return mapped[HEADER_BYTES:].view(shape)


def _verified_shape(file: BinaryIO, key: str) -> tuple[int, ...]:
    """Check every byte of a file and return its samples' shape.

    It is read, not mapped, since a disk error in a mapped file raises SIGBUS.
    """
    try:
        header = json.loads(file.read(HEADER_BYTES))
        file_format, file_key, shape, expected = (header[name] for name in ("format", "key", "shape", "crc32"))
        sizes = [int(size) for size in shape]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError("its header cannot be read") from None
    if (file_format, file_key) != (FORMAT, key):
        raise ValueError("its header belongs to another file")
    size = checksum = 0
    while chunk := file.read(_CHUNK_BYTES):
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    if size != math.prod(sizes) or min(sizes, default=0) < 0:
        raise ValueError(f"it has {size} bytes, which do not match its shape")
    if _with_shape(checksum, sizes) != expected:
        raise ValueError("its checksum is wrong")
    return tuple(sizes)


def _with_shape(checksum: int, sizes: list[int]) -> int:
    """Add the shape to the samples' checksum: a permuted shape has the same number of bytes."""
    return zlib.crc32(json.dumps(sizes).encode(), checksum)
