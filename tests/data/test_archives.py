"""Archives that try to leave their folder, and those that do not."""

import gzip
import io
import os
import resource
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from saligraft.data import archives
from saligraft.data.archives import unpack

FILES = {"set/a.txt": b"1", "set/deep/b.txt": b"2", "beside.txt": b"3"}


def make(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name, content in files.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, content in files.items():
                tar.addfile(entry(name, size=len(content)), io.BytesIO(content))
    return path


def entry(name: str, **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def files_under(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tgz"])
@pytest.mark.parametrize("inside", ["set", None])
def test_a_folder_of_an_archive_or_all_of_it(tmp_path: Path, name: str, inside: str | None) -> None:
    archive = make(tmp_path / name, FILES)
    unpack(archive, tmp_path / "target", inside)
    assert files_under(tmp_path / "target") == ({"a.txt": b"1", "deep/b.txt": b"2"} if inside else FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", name]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
@pytest.mark.parametrize("bad", ["../out.txt", "set/../../out.txt", "/out.txt", "C:/out.txt", "..\\out.txt"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str, bad: str) -> None:
    (tmp_path / "root").mkdir()
    archive = make(tmp_path / "root" / name, FILES | {bad: b"bad"})
    with pytest.raises(ValueError, match=r"which is outside the folder"):
        unpack(archive, tmp_path / "root" / "target", "set")
    assert files_under(tmp_path).keys() == {f"root/{name}"}


def make_tar(path: Path, *entries: tarfile.TarInfo, content: bytes = b"") -> Path:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info in entries:
            tar.addfile(info, io.BytesIO(content))
    return path


def refused(archive: Path, words: str) -> None:
    """Unpacking leaves nothing."""
    before = files_under(archive.parent)
    with pytest.raises(ValueError, match=rf"{archive.name} is damaged or not the official file: .*{words}"):
        unpack(archive, archive.parent / "target", "set")
    assert files_under(archive.parent) == before
    assert not (archive.parent / "target").exists()


@pytest.mark.parametrize(
    "bad",
    [
        entry("set/link", type=tarfile.SYMTYPE, linkname="../../out"),
        entry("set/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("set/link", type=tarfile.SYMTYPE, linkname="a.txt"),
        entry("set/link", type=tarfile.LNKTYPE, linkname="../../out"),
        entry("set/link", type=tarfile.LNKTYPE, linkname="set/a.txt"),
        entry("set/device", type=tarfile.CHRTYPE),
        entry("set/pipe", type=tarfile.FIFOTYPE),
        entry("set/sparse", type=tarfile.GNUTYPE_SPARSE),
    ],
    ids=lambda bad: f"{bad.name} {bad.linkname}",
)
def test_all_but_files_and_folders_is_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    refused(make_tar(tmp_path / "x.tar.gz", entry("set/a.txt"), bad), "is neither file nor folder")


def test_links_in_zip_files_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("set/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    refused(tmp_path / "x.zip", "'set/link' is neither file nor folder")


def test_compression_that_is_not_bounded_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("set/a.txt", b"1")
    refused(tmp_path / "x.zip", "'set/a.txt' is compressed by method 14, not deflate")


def test_a_path_too_long_to_be_followed_does_not_lead_out(tmp_path: Path) -> None:
    """CVE-2025-4517: behind a path longer than the system resolves, a link that leads out looks as if it did not."""
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    long, steps, path, entries = "d" * 247, "abcdefghijklmnop", "", []
    for step in steps:
        entries += [entry(f"{path}{long}", type=tarfile.DIRTYPE)]
        entries += [entry(f"{path}{step}", type=tarfile.SYMTYPE, linkname=long)]
        path += f"{long}/"
    far = "/".join(steps) + "/" + "l" * 254
    content = b"overwritten"
    entries += [
        entry(far, type=tarfile.SYMTYPE, linkname="../" * len(steps)),
        entry("escape", type=tarfile.SYMTYPE, linkname=f"{far}/../.."),
        entry("door", type=tarfile.LNKTYPE, linkname="escape/victim.txt"),
        entry("door", size=len(content)),
    ]
    (tmp_path / "root").mkdir()
    archive = make_tar(tmp_path / "root" / "x.tar.gz", *entries, content=content)
    with pytest.raises(ValueError, match="is neither file nor folder"):
        unpack(archive, tmp_path / "root" / "target")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_more_files_or_bytes_than_any_official_archive_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(tmp_path / name, {f"set/{number}": b"1234" for number in range(5)})
    monkeypatch.setattr(archives, "MOST_MEMBERS", 5)
    monkeypatch.setattr(archives, "MOST_BYTES", 20)
    unpack(archive, tmp_path / "target")
    monkeypatch.setattr(archives, "MOST_MEMBERS", 4)
    with pytest.raises(ValueError, match=r"it contains more than 4 files or 20 bytes"):
        unpack(archive, tmp_path / "few")
    monkeypatch.setattr(archives, "MOST_MEMBERS", 5)
    monkeypatch.setattr(archives, "MOST_BYTES", 19)
    with pytest.raises(ValueError, match=r"it contains more than 5 files or 19 bytes"):
        unpack(archive, tmp_path / "few")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", name]


def header(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    return entry("set/a", size=size, type=kind).tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (header(1 << 40), "it contains more than 250,000 files or 8,589,934,592 bytes"),
        (header(-512), "it contains more than"),
        (header(1 << 27, tarfile.XHDTYPE), "its header is too long"),
        (header(1 << 27, tarfile.GNUTYPE_LONGNAME), "its header is too long"),
        (header(-512, tarfile.XHDTYPE), "its header is too long"),
    ],
    ids=["large", "negative", "pax", "long name", "negative pax"],
)
def test_sizes_that_would_fill_memory_or_disk_are_refused_unread(tmp_path: Path, head: bytes, words: str) -> None:
    with gzip.open(tmp_path / "x.tar.gz", "wb") as file:
        file.write(head)
        for _ in range(128):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(tmp_path / "x.tar.gz", words)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_longer_than_a_header_are_read(tmp_path: Path, form: int) -> None:
    names = [f"set/{'d' * 90}/{'f' * length}.txt" for length in (5, 80)]
    if form != tarfile.USTAR_FORMAT:
        names.append(f"set/{'d' * 90}/ü{'f' * 150}.txt")
    with tarfile.open(tmp_path / "x.tgz", "w:gz", format=form) as tar:
        tar.addfile(entry("./", type=tarfile.DIRTYPE))
        for name in names:
            tar.addfile(entry(name, size=700), io.BytesIO(b"x" * 700))
        tar.addfile(entry("set/empty", type=tarfile.DIRTYPE))
        tar.addfile(entry("set/short.txt", size=1), io.BytesIO(b"y"))
    unpack(tmp_path / "x.tgz", tmp_path / "target")
    assert files_under(tmp_path / "target") == dict.fromkeys(names, b"x" * 700) | {"set/short.txt": b"y"}
    assert (tmp_path / "target" / "set" / "empty").is_dir()


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
@pytest.mark.parametrize("keep", [0, 10, 50_000])
def test_damage_leaves_nothing(tmp_path: Path, name: str, keep: int) -> None:
    archive = make(tmp_path / name, FILES | {"set/long": os.urandom(100_000)})
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"{name} is damaged or not the official file"):
        unpack(archive, tmp_path / "target", "set")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_encrypted_archive_is_named(tmp_path: Path) -> None:
    archive = make(tmp_path / "x.zip", {"set/a.txt": b"1"})
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # the flag of encryption, in the file's own header and in the list at the end
    content[content.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.zip is damaged or not the official file: .*encrypted"):
        unpack(archive, tmp_path / "set", "set")
    assert list(tmp_path.iterdir()) == [archive]


def test_an_archive_without_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it contains no folder other"):
        unpack(make(tmp_path / "x.zip", FILES), tmp_path / "target", "other")


def test_what_a_killed_process_left_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / ".target.unpacking" / "set").mkdir(parents=True)
    (tmp_path / ".target.unpacking" / "set" / "old.txt").touch()
    unpack(make(tmp_path / "x.zip", FILES), tmp_path / "target", "set")
    assert files_under(tmp_path / "target").keys() == {"a.txt", "deep/b.txt"}
