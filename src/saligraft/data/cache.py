"""Samples decoded once: a uint8 array on disk, keyed by content, mapped into memory, shared by all processes.

`cached("tiny-imagenet-train", key, blocks)` gives a tensor (N, ...) uint8 over a file. Where that file is missing or
damaged, `blocks()` yields the samples in consecutive pieces (n, ...), so that the whole is never held twice. The key
must depend on all that the samples depend on: the bytes of the source files and how they are decoded; `content_key`
and `files_key` make one.

A file is written aside, synced and renamed, so it is whole or absent. One process builds while others wait for it.
A file opens with one line of JSON; its checksum is verified at each load, and nothing in it is ever unpickled.
The tensor is private to its process: writing into it changes no file. All files may be deleted at any time.
"""

import hashlib
import json
import math
import os
import secrets
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from saligraft.io.files import rename_durably
from saligraft.io.locks import locked

HEADER_BYTES = 4096  # a page, so that samples start aligned
FORMAT = "saligraft cache 2"
_CHUNK_BYTES = 1 << 20

Blocks = Callable[[], Iterable[Tensor]]


def cached(name: str, key: str, blocks: Blocks) -> Tensor:
    """The samples that `blocks` yields, from the cache where they are there already.

    Where the cache cannot be written, that is said in a warning, and the samples are held in memory.
    """
    folder: Path | None = None
    try:
        with _cache_trouble():
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{key}.bin"
        found = _read(path, key)
        return _build(path, key, blocks) if found is None else found
    except CacheUnavailableError as error:
        warnings.warn(
            f"the cache {folder or 'folder'} cannot be used ({error}), so samples are decoded anew and held in memory; "
            "SALIGRAFT_CACHE names another folder",
            stacklevel=2,
        )
        return torch.cat([_checked(block) for block in blocks()])


def cache_folder() -> Path:
    """$SALIGRAFT_CACHE, or `saligraft` in the platform's folder for caches."""
    chosen = os.environ.get("SALIGRAFT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "saligraft" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "saligraft"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one is to be ignored, says its specification
    return (base if base.is_absolute() else Path.home() / ".cache") / "saligraft"


def content_key(*parts: str | bytes) -> str:
    """A key of what the samples depend on; ("ab", "c") and ("a", "bc") differ."""
    return _key(parts)


def files_key(decoding: str, root: Path, names: Iterable[str]) -> str:
    """A key of these files under `root`, by name, order and content, and of how they are decoded.

    All bytes are read, since sizes and times of change do not tell a restored or half-copied folder from a whole one;
    reading small images costs a fraction of decoding them.
    """

    def parts() -> Iterator[str | bytes]:
        yield decoding
        for name in names:
            yield name
            yield (root / name).read_bytes()

    return _key(parts())


def _key(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


class CacheUnavailableError(Exception):
    """The cache cannot be read or written; why is its text."""


@contextmanager
def _cache_trouble() -> Iterator[None]:
    """Tell faults of the cache from those of the source files, which no fallback may hide."""
    try:
        yield
    except OSError as error:
        raise CacheUnavailableError(error.strerror or str(error)) from error
    except RuntimeError as error:  # pathlib's word for a user without a home, as in some containers
        raise CacheUnavailableError(str(error).rstrip(".")) from error


def _checked(block: Tensor) -> Tensor:
    if block.dtype != torch.uint8 or block.ndim < 2:
        raise TypeError(f"a block must be uint8 of shape (n, ...), got {block.dtype} {tuple(block.shape)}")
    return block.contiguous()


def _build(path: Path, key: str, blocks: Blocks) -> Tensor:
    """Write the file unless another process has done so while this one waited for its turn."""
    with ExitStack() as stack:
        with _cache_trouble():
            alone = stack.enter_context(locked(path.with_name(f"{path.name}.lock")))
        found = _read(path, key, tell_damage=True)
        if found is not None:
            return found
        if alone:  # what a killed process left behind
            with _cache_trouble():
                for left in path.parent.glob(f"{path.name}.*.part"):
                    left.unlink(missing_ok=True)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
        try:
            _write(part, key, blocks)
            with _cache_trouble():
                rename_durably(part, path)
        finally:
            part.unlink(missing_ok=True)
    written = _read(path, key)
    if written is None:
        raise CacheUnavailableError("what was written does not read back")
    return written


def _write(part: Path, key: str, blocks: Blocks) -> None:
    """Samples first, then the header that tells their shape and checksum, then both to the disk."""
    with _cache_trouble():
        file = part.open("xb")
    with file:
        with _cache_trouble():
            file.seek(HEADER_BYTES)
        count, checksum, shape = 0, 0, None
        for block in map(_checked, blocks()):
            shape = block.shape[1:] if shape is None else shape
            if block.shape[1:] != shape:
                raise ValueError(f"blocks must hold samples of one shape {tuple(shape)}, got {tuple(block.shape[1:])}")
            content = block.numpy().data.cast("B") if block.numel() else b""
            checksum = zlib.crc32(content, checksum)
            count += len(block)
            with _cache_trouble():
                file.write(content)
        sizes = [count, *(shape or ())]
        header = {"format": FORMAT, "key": key, "shape": sizes, "crc32": _sealed(checksum, sizes)}
        with _cache_trouble():
            file.truncate(max(file.tell(), HEADER_BYTES))
            file.seek(0)
            file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path, key: str, tell_damage: bool = False) -> Tensor | None:
    """The samples of a whole file; None where it is missing or damaged, which a warning may tell."""
    try:
        if path.is_fifo():
            raise ValueError("it is a pipe")  # to open it would wait for a writer
        with path.open("rb") as file:
            shape = _verified_shape(file, key)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheUnavailableError(error.strerror or str(error)) from error
    except ValueError as error:
        if tell_damage:
            warnings.warn(f"the cache file {path} is damaged ({error}) and is built anew", stacklevel=4)
        return None
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    return mapped[HEADER_BYTES:].view(shape)


def _verified_shape(file: BinaryIO, key: str) -> tuple[int, ...]:
    """The shape of a file's samples, once every byte was checked; plain reads, since a bad disk kills who maps it."""
    try:
        header = json.loads(file.read(HEADER_BYTES))
        form, found, shape, expected = (header[name] for name in ("format", "key", "shape", "crc32"))
        sizes = [int(size) for size in shape]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError("its header cannot be read") from None
    if (form, found) != (FORMAT, key):
        raise ValueError("its header belongs to another file")
    size = checksum = 0
    while chunk := file.read(_CHUNK_BYTES):
        size, checksum = size + len(chunk), zlib.crc32(chunk, checksum)
    if size != math.prod(sizes) or min(sizes, default=0) < 0:
        raise ValueError(f"it holds {size} bytes, which do not fill its shape")
    if _sealed(checksum, sizes) != expected:
        raise ValueError("its checksum is wrong")
    return tuple(sizes)


def _sealed(checksum: int, sizes: list[int]) -> int:
    """The checksum of the samples, and of their shape too: a permuted one would fit as many bytes."""
    return zlib.crc32(json.dumps(sizes).encode(), checksum)
