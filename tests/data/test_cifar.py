"""CIFAR from files of the official form, with checksums of their own."""

import dataclasses
import hashlib
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from saligraft.data import cifar, load, restricted_unpickler
from saligraft.data.cifar import (
    CIFAR10_CLASSES,
    CIFAR100_COARSE_CLASSES,
    CIFAR100_FINE_CLASSES,
    cifar10,
    cifar100,
)

COUNT = 20
SOURCES = {"cifar100": "CIFAR100", "cifar10": "CIFAR10"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))


def records(name: str, file: str) -> np.ndarray:  # type: ignore[type-arg]
    """Label bytes and pixels of one file, as the binaries hold them."""
    draws = np.random.default_rng(list(file.removesuffix(".bin").encode()))
    limits = [20, 100] if name == "cifar100" else [10]
    labels = [draws.integers(0, limit, (COUNT, 1), dtype=np.uint8) for limit in limits]
    return np.concatenate([*labels, draws.integers(0, 256, (COUNT, 3072), dtype=np.uint8)], axis=1)


def pickled(name: str, rows: np.ndarray) -> bytes:  # type: ignore[type-arg]
    names = [b"coarse_labels", b"fine_labels"] if name == "cifar100" else [b"labels"]
    content: dict[bytes, Any] = {key: rows[:, place].tolist() for place, key in enumerate(names)}
    return pickle.dumps(content | {b"batch_label": b"x", b"data": rows[:, len(names) :].copy()}, protocol=3)


class Files:
    """The files of both forms, whose md5 take the place of the official ones."""

    def __init__(self, root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.name = root, name
        source = getattr(cifar, SOURCES[name])
        self.pickles, self.binaries = (self._write(form) for form in (source.pickles, source.binaries))
        changed = dataclasses.replace(source, pickles=self.pickles, binaries=self.binaries)
        monkeypatch.setattr(cifar, SOURCES[name], changed)

    def _write(self, form: cifar.Form) -> cifar.Form:
        (self.root / form.folder).mkdir(parents=True)
        files: dict[str, dict[str, str]] = {}
        for split, names in form.files.items():
            for file in names:
                rows = records(self.name, file)
                content = rows.tobytes() if file.endswith(".bin") else pickled(self.name, rows)
                (self.root / form.folder / file).write_bytes(content)
                files.setdefault(split, {})[file] = hashlib.md5(content).hexdigest()
        return dataclasses.replace(form, files=files)

    def keep(self, *names: str) -> None:
        """Remove all folders but these."""
        for form in (self.pickles, self.binaries):
            for path in (self.root / form.folder).iterdir() if form.folder not in names else ():
                path.unlink()

    def pack(self, form: cifar.Form, monkeypatch: pytest.MonkeyPatch | None = None) -> Path:
        """Write the archive; its digest becomes the official one unless `monkeypatch` is left out."""
        archive = self.root / form.archive
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted((self.root / form.folder).iterdir(), reverse=True):
                tar.add(path, f"{form.folder}/{path.name}")
        if monkeypatch is not None:
            digest = "md5:" + hashlib.md5(archive.read_bytes()).hexdigest()
            field = "binaries" if form is self.binaries else "pickles"
            source = getattr(cifar, SOURCES[self.name])
            changed = dataclasses.replace(source, **{field: dataclasses.replace(form, digest=digest)})
            monkeypatch.setattr(cifar, SOURCES[self.name], changed)
        return archive


@pytest.fixture(params=["cifar100", "cifar10"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path / "data", request.param, monkeypatch)


def expected(name: str, split: str) -> np.ndarray:  # type: ignore[type-arg]
    batches = [f"data_batch_{number}" for number in range(1, 6)] if split == "train" else ["test_batch"]
    return np.concatenate([records(name, file) for file in ([split] if name == "cifar100" else batches)])


def check(name: str, split: str, root: Path) -> None:
    data, rows = load(name, split=split, root=root), expected(name, split)
    assert torch.equal(data.images.flatten(1), torch.from_numpy(rows[:, -3072:].copy()))  # type: ignore[union-attr]
    assert data.labels.tolist() == rows[:, -3073].tolist()
    assert data.num_classes == int(name.removeprefix("cifar"))


@pytest.mark.parametrize(
    ("split", "form", "place"),  # pairwise
    [
        ("train", "pickles", "folder"),
        ("test", "binaries", "folder"),
        ("test", "pickles", "parent"),
        ("train", "binaries", "parent"),
        ("train", "pickles", "archive"),
        ("test", "binaries", "archive"),
    ],
)
def test_reads_every_form_from_every_place(
    files: Files, split: str, form: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = getattr(files, form)
    if place == "archive":
        files.pack(chosen, monkeypatch)
    files.keep(*([] if place == "archive" else [chosen.folder]))
    check(files.name, split, files.root / chosen.folder if place == "folder" else files.root)


def test_a_cached_set_is_the_same_and_is_not_read_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    check(files.name, "train", files.root)
    monkeypatch.setattr(restricted_unpickler, "loads", None)
    check(files.name, "train", files.root)


def test_the_default_root_is_data_and_the_name(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files.root.parent)
    files.root.rename(files.root.parent / "all")
    (files.root.parent / "data").mkdir()
    (files.root.parent / "all").rename(files.root.parent / "data" / files.name)
    assert len(load(files.name, split="test")) == COUNT


def test_coarse_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path / "data", "cifar100", monkeypatch)
    data = cifar100(split="test", root=files.root, labels="coarse")
    assert data.labels.tolist() == expected("cifar100", "test")[:, 0].tolist()
    assert (data.num_classes, data.classes[0], data.classes[-1]) == (20, "aquatic_mammals", "vehicles_2")


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("place", ["folder", "archive"])
def test_a_file_of_another_checksum_is_refused_before_it_is_unpickled(
    files: Files, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = files.root / files.pickles.folder / next(iter(files.pickles.files["test"]))
    victim.write_bytes(pickle.dumps(Touch(tmp_path / "touched"), protocol=2))
    if place == "archive":
        files.pack(files.pickles, monkeypatch)
        files.keep()
    monkeypatch.setattr(
        restricted_unpickler, "loads", lambda _: pytest.fail("unpickled before the checksum was checked")
    )
    with pytest.raises(ValueError, match=rf"{victim.name} is damaged or not the official file: its md5 is .*, not "):
        load(files.name, split="test", root=files.root)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("form", ["pickles", "binaries"])
def test_a_truncated_file_is_named(files: Files, form: str) -> None:
    chosen = getattr(files, form)
    files.keep(chosen.folder)
    victim = files.root / chosen.folder / list(chosen.files["train"])[-1]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{victim} is damaged"):
        load(files.name, split="train", root=files.root)


@pytest.mark.parametrize(("name", "file"), [("cifar10", "data_batch_3"), ("cifar100", "train")])
def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str) -> None:
    files = Files(tmp_path / "data", name, monkeypatch)
    missing = files.root / files.pickles.folder / file
    missing.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{missing} is missing, although other files of"):
        load(name, split="train", root=files.root)


@pytest.mark.parametrize("function", [cifar10, cifar100])
def test_an_empty_root_says_what_to_put_there(function: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"in {tmp_path}: put cifar-100?-python.tar.gz from https://.* there"):
        function(root=tmp_path)


@pytest.mark.parametrize("damage", [lambda content: content[:200], lambda _: b"", lambda content: content[:100] * 9])
def test_a_damaged_archive_is_named(files: Files, damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = files.pack(files.pickles, monkeypatch)
    files.keep()
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match=rf"{archive} is damaged or not the official file: its md5"):
        load(files.name, split="test", root=files.root)


def test_an_archive_of_another_checksum_is_not_read(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a small file that decompresses to gigabytes."""
    archive = files.pack(files.pickles)
    files.keep()
    monkeypatch.setattr(cifar, "members", lambda _: pytest.fail("read before the checksum was checked"))
    with pytest.raises(ValueError, match=rf"{archive} is damaged or not the official file: its md5 is .*, not "):
        load(files.name, split="test", root=files.root)


def test_of_a_file_no_more_is_read_than_the_official_ones_hold(files: Files) -> None:
    victim = files.root / files.pickles.folder / next(iter(files.pickles.files["test"]))
    os.truncate(victim, 1 << 40)
    with pytest.raises(ValueError, match=rf"{victim} is damaged or not the official file: its md5"):
        load(files.name, split="test", root=files.root)


def test_an_archive_without_the_file_is_named(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    next(iter((files.root / files.pickles.folder).glob("test*"))).unlink()
    archive = files.pack(files.pickles, monkeypatch)
    files.keep()
    with pytest.raises(ValueError, match=rf"{archive} is damaged .*: it contains no {files.pickles.folder}/test"):
        load(files.name, split="test", root=files.root)


@pytest.mark.parametrize(("option", "words"), [("split", "split must be one of"), ("labels", "labels must be one of")])
def test_unknown_options_list_the_valid_ones(option: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cifar100(**{option: "x"})


def test_names_are_as_many_as_the_set_says_and_sorted_as_published() -> None:
    for names, count in ((CIFAR10_CLASSES, 10), (CIFAR100_FINE_CLASSES, 100), (CIFAR100_COARSE_CLASSES, 20)):
        assert len(names) == count
        assert list(names) == sorted(set(names))
