"""The cache of decoded samples: the same samples, whole or absent, whatever happens to its files."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from saligraft.data import cache
from saligraft.data.cache import HEADER_BYTES, cache_folder, cached, content_key, files_key


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


SAMPLES = torch.randint(256, (23, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


class Source:
    """Counts how often it is asked to decode."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.asked = sizes or (10, 13), 0

    def __call__(self) -> Iterator[Tensor]:
        self.asked += 1
        yield from SAMPLES.split(self.sizes)


@pytest.mark.parametrize("sizes", [(23,), (10, 13), (1,) * 23, (0, 23, 0)])
def test_gives_the_samples_and_decodes_once(sizes: tuple[int, ...], folder: Path) -> None:
    source = Source(*sizes)
    for _ in range(3):
        assert torch.equal(cached("set", "k", source), SAMPLES)
    assert source.asked == 1
    assert sorted(path.name for path in folder.iterdir()) == ["set-k.bin", "set-k.bin.lock"]


def test_another_key_is_another_file() -> None:
    first, second = Source(), Source()
    cached("set", "k1", first), cached("set", "k2", second)
    assert first.asked == second.asked == 1


def test_blocks_that_are_not_contiguous_are_stored_as_they_look() -> None:
    turned = SAMPLES.transpose(2, 3)
    assert torch.equal(cached("set", "k", lambda: [turned]), turned)
    assert torch.equal(cached("set", "k", Source()), turned)


def test_writing_into_the_samples_changes_no_file() -> None:
    cached("set", "k", Source()).zero_()
    assert torch.equal(cached("set", "k", Source()), SAMPLES)


def test_samples_are_mapped_not_read(folder: Path) -> None:
    samples = cached("set", "k", Source())
    if sys.platform == "linux":
        assert str(folder / "set-k.bin") in Path("/proc/self/maps").read_text()
    assert torch.equal(samples[3], SAMPLES[3])


def _flip_a_bit(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _with_shape(content: bytes, sizes: list[int]) -> bytes:
    """Another shape under a checksum that fits it."""
    header, samples = json.loads(content[:HEADER_BYTES]), content[HEADER_BYTES:]
    header |= {"shape": sizes, "crc32": zlib.crc32(json.dumps(sizes).encode(), zlib.crc32(samples))}
    return json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n" + samples


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: _with_shape(content, [-23, -3, 5, 4]),
        lambda content: _with_shape(content, [24, 3, 5, 4]),
        lambda _: b"",
        lambda content: content[:100],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: _flip_a_bit(content, HEADER_BYTES),
        lambda content: _flip_a_bit(content, -1),
        lambda content: b"\0" * len(content),
        lambda content: b"[]".ljust(HEADER_BYTES) + content[HEADER_BYTES:],
        lambda content: content.replace(b'"key": "k"', b'"key": "j"'),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[23, 3, 4, 5, 1]"[:13]),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[23, 3, 4, 5]"),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[-23,-3, 5,4]"),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[23, 60]     "),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[]           "),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[1e999]      "),
        lambda content: content.replace(b"[23, 3, 5, 4]", b"[1e300, 1e30]"),
        lambda content: b"[" * HEADER_BYTES + content[HEADER_BYTES:],
        lambda content: b'{"format":' * 400 + content[4000:],
    ],
)
def test_a_damaged_file_is_noticed_and_rebuilt(damage, folder: Path) -> None:  # type: ignore[no-untyped-def]
    cached("set", "k", Source())
    path = folder / "set-k.bin"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    source = Source()
    with pytest.warns(UserWarning, match=r"cache file .*set-k\.bin is damaged") as warnings:
        assert torch.equal(cached("set", "k", source), SAMPLES)
    assert len(warnings) == 1
    assert source.asked == 1
    assert path.read_bytes() == whole


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_in_place_of_files_are_not_waited_for(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "set-k.bin")
    with pytest.warns(UserWarning, match=r"set-k\.bin is damaged \(it is a pipe\) and is rebuilt"):
        assert torch.equal(cached("set", "k", Source()), SAMPLES)
    assert torch.equal(cached("set", "k", Source()), SAMPLES)
    os.mkfifo(folder / "set-other.bin.lock")
    assert torch.equal(cached("set", "other", Source()), SAMPLES)


def test_the_header_is_a_line_of_json(folder: Path) -> None:
    cached("set", "k", Source())
    header = json.loads((folder / "set-k.bin").read_bytes().split(b"\n")[0])
    assert header["shape"] == [23, 3, 5, 4]
    assert header["format"] == "saligraft cache 2"


def test_an_error_of_the_source_is_reported_and_leaves_nothing(folder: Path) -> None:
    def broken() -> Iterator[Tensor]:
        yield SAMPLES
        raise FileNotFoundError(errno.ENOENT, "no such picture", "7.png")

    with pytest.raises(FileNotFoundError, match=r"7\.png"):
        cached("set", "k", broken)
    assert [path.name for path in folder.iterdir()] == ["set-k.bin.lock"]


@pytest.mark.parametrize("block", [SAMPLES.float(), torch.zeros(3, dtype=torch.uint8)])
def test_blocks_must_be_uint8_samples(block: Tensor) -> None:
    with pytest.raises(TypeError, match="a block must be uint8 of shape"):
        cached("set", "k", lambda: [block])


def test_blocks_must_agree_on_the_shape() -> None:
    with pytest.raises(ValueError, match=r"blocks must hold samples of one shape \(3, 5, 4\), got \(3, 4, 5\)"):
        cached("set", "k", lambda: [SAMPLES, SAMPLES.reshape(23, 3, 4, 5)])


def test_a_folder_that_cannot_be_made_means_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be used .*kept in memory"):
        assert torch.equal(cached("set", "k", Source()), SAMPLES)


@pytest.mark.parametrize("chosen", ["", "~no such user/cache"])
def test_a_user_without_a_home_means_memory(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    def nobody(_: object = None) -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("SALIGRAFT_CACHE", chosen)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.warns(UserWarning, match=r"the cache folder cannot be used \(Could not determine home directory\)"):
        assert torch.equal(cached("set", "k", Source()), SAMPLES)


def test_a_full_disk_means_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert torch.equal(cached("set", "k", Source()), SAMPLES)
    assert [path.name for path in folder.iterdir()] == ["set-k.bin.lock"]


def _load(folder: str, counter: str, answers, pause: float = 0.05) -> None:  # type: ignore[no-untyped-def]
    os.environ["SALIGRAFT_CACHE"] = folder

    def slow() -> Iterator[Tensor]:
        with Path(counter).open("a") as file:
            file.write("x")
        for block in SAMPLES.split(4):
            time.sleep(pause)
            yield block

    answers.put(torch.equal(cached("set", "k", slow), SAMPLES))


def test_of_processes_that_come_at_once_one_builds(folder: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    counter = tmp_path / "built"
    workers = [context.Process(target=_load, args=(str(folder), str(counter), answers)) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=60) for _ in workers] == [True] * 4
    for worker in workers:
        worker.join()
    assert counter.read_text() == "x"


def test_a_killed_builder_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (str(folder), str(tmp_path / "built"), context.Queue(), 600)  # paused until it is killed
    worker = context.Process(target=_load, args=arguments)
    worker.start()
    deadline = time.monotonic() + 60
    while not list(folder.glob(".*.partial")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    assert list(folder.glob(".*.partial"))
    source = Source()
    assert torch.equal(cached("set", "k", source), SAMPLES)
    assert source.asked == 1
    assert not list(folder.glob(".*.partial"))


def test_without_locks_it_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    assert torch.equal(cached("set", "k", Source()), SAMPLES)


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_keys_are_equal_for_equal_parts_alone(one: list[bytes], other: list[bytes]) -> None:
    assert (content_key(one) == content_key(other)) == (one == other)


def test_the_key_of_files_sees_every_byte_name_and_decoding(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "b").write_bytes(b"3")
    key = files_key("v1", tmp_path, ["a", "b"])
    assert files_key("v1", tmp_path, ["a", "b"]) == key
    others = {files_key("v2", tmp_path, ["a", "b"]), files_key("v1", tmp_path, ["b", "a"])}
    times = (tmp_path / "a").stat()
    (tmp_path / "a").write_bytes(b"13")
    os.utime(tmp_path / "a", ns=(times.st_atime_ns, times.st_mtime_ns))
    others.add(files_key("v1", tmp_path, ["a", "b"]))
    assert len(others | {key}) == 4


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/saligraft"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/saligraft"),
        ("linux", {}, "/home/me/.cache/saligraft"),
        ("darwin", {}, "/home/me/Library/Caches/saligraft"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/saligraft/Cache"),
        ("linux", {"SALIGRAFT_CACHE": "~/here"}, "/home/me/here"),
    ],
)
def test_the_folder_of_each_platform(
    platform: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "SALIGRAFT_CACHE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(expected)
