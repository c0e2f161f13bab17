"""Archives that try to leave their folder, and those that do not."""

import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

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
    with pytest.raises(ValueError, match=r"which leads out of the folder"):
        unpack(archive, tmp_path / "root" / "target", "set")
    assert files_under(tmp_path).keys() == {f"root/{name}"}


@pytest.mark.parametrize(
    "bad",
    [
        entry("set/link", type=tarfile.SYMTYPE, linkname="../../out"),
        entry("set/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        entry("set/link", type=tarfile.LNKTYPE, linkname="../../out"),
        entry("set/device", type=tarfile.CHRTYPE),
        entry("set/pipe", type=tarfile.FIFOTYPE),
    ],
)
def test_links_out_and_devices_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(bad)
    with pytest.raises(ValueError, match=r"x\.tar\.gz is refused"):
        unpack(archive, tmp_path / "target", "set")
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar.gz"]


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
    with pytest.raises(ValueError, match="it holds no folder other"):
        unpack(make(tmp_path / "x.zip", FILES), tmp_path / "target", "other")


def test_what_a_killed_process_left_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / ".target.unpacking" / "set").mkdir(parents=True)
    (tmp_path / ".target.unpacking" / "set" / "old.txt").touch()
    unpack(make(tmp_path / "x.zip", FILES), tmp_path / "target", "set")
    assert files_under(tmp_path / "target").keys() == {"a.txt", "deep/b.txt"}


def test_a_python_that_cannot_refuse_names_unpacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(ImportError, match=r"needs Python 3\.11\.4"):
        unpack(make(tmp_path / "x.tgz", FILES), tmp_path / "target", "set")
