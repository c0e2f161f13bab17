"""Source files: where they are looked for, their checksums, packed names and class folders."""

import hashlib
import inspect
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.data import DATASETS
from saligraft.data.files import (
    FileNames,
    check_file,
    class_names,
    data_root,
    image_files,
    labelled_files,
    loose_image,
    read_lines,
)


def test_the_default_root_lies_under_the_working_folder() -> None:
    assert data_root("cifar100", None) == Path("data/cifar100")


@pytest.mark.parametrize(
    "name", [name for name, make in DATASETS.items() if "root" in inspect.signature(make).parameters]
)
def test_every_set_knows_the_users_own_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root(name, "~/here") == tmp_path / "here"
    with pytest.raises((ValueError, FileNotFoundError), match=str(tmp_path / "here")):
        DATASETS[name](root="~/here")
    with pytest.raises(ValueError, match="root must name a folder, got '~no such user/here'"):
        DATASETS[name](root="~no such user/here")


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_published_digest_passes_and_any_other_is_named(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = hashlib.new(algorithm, b"content").hexdigest()
    check_file(path, f"{algorithm}:{digest}")
    other = hashlib.new(algorithm, b"other").hexdigest()
    with pytest.raises(ValueError, match=rf"{path} is damaged .*: its {algorithm} is {digest}, not {other}"):
        check_file(path, f"{algorithm}:{other}")


def test_content_is_checked_without_reading_the_file(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar.gz" / "member"
    check_file(path, "md5:" + hashlib.md5(b"content").hexdigest(), b"content")
    with pytest.raises(ValueError, match=rf"{path} is damaged or not the official file"):
        check_file(path, "md5:" + hashlib.md5(b"content").hexdigest(), b"contend")


names = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20), max_size=8)


@given(names=names)
def test_packed_names_come_back_in_any_order(names: list[str]) -> None:
    packed = FileNames(names)
    assert list(packed) == names
    assert list(packed.subset(torch.arange(len(names)).flip(0))) == names[::-1]
    assert list(pickle.loads(pickle.dumps(packed))) == names


def test_paths_and_bytes_that_are_no_text_are_kept() -> None:
    assert list(FileNames([Path("a b") / "c.png", "\udcff"])) == ["a b/c.png", "\udcff"]


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_is_named(index: int) -> None:
    with pytest.raises(IndexError, match=rf"index must lie in \[0, 2\), got {index}"):
        FileNames(["a", "b"])[index]


def make_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_nested_folders_spaces_and_any_case_of_suffix_count_and_hidden_files_do_not(tmp_path: Path) -> None:
    make_files(tmp_path, "b/2.PNG", "b/deep er/1.JpEg", "a/x.tiff", "a/.x.txt", "a/Thumbs.db", ".git/x", "b/.c/y.doc")
    assert class_names(tmp_path) == ("a", "b")
    files, labels = labelled_files(tmp_path, ("0", "a", "b"))
    assert list(files) == ["a/x.tiff", "b/2.PNG", "b/deep er/1.JpEg"]
    assert labels.tolist() == [1, 2, 2]


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    make_files(tmp_path, "a/1.png", "a/inner/labels.csv")
    with pytest.raises(ValueError, match=r"class folders must hold only images \(.*\.png.*got .*inner/labels\.csv"):
        labelled_files(tmp_path, ("a", "b"))


def test_empty_and_unknown_classes_and_broken_links_are_named(tmp_path: Path) -> None:
    make_files(tmp_path, "a/1.png", "b/.hidden")
    with pytest.raises(ValueError, match=r"class folder .*b must hold images, got none"):
        labelled_files(tmp_path, ("a", "b"))
    with pytest.raises(ValueError, match=r"class folder .*b must be one of the 2 classes of train"):
        labelled_files(tmp_path, ("a", "c"))
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match=r"2\.png is missing: a broken link"):
        labelled_files(tmp_path, ("a", "b"))


def test_links_to_folders_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    make_files(tmp_path, "elsewhere/1.png", "all/a/2.png")
    (tmp_path / "all" / "a" / "link").symlink_to(tmp_path / "elsewhere")
    assert list(labelled_files(tmp_path / "all", ("a",))[0]) == ["a/2.png", "a/link/1.png"]
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        labelled_files(tmp_path / "all", ("a",))


def test_an_image_outside_class_folders_is_listed(tmp_path: Path) -> None:
    make_files(tmp_path, "README.md", "a/1.png", ".x.png")
    assert loose_image(tmp_path) is None
    make_files(tmp_path, "2.jpg", "1.JPG")
    assert loose_image(tmp_path) == "1.JPG"


def test_lines_are_those_of_a_text_that_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    with pytest.raises(FileNotFoundError, match=rf"{path} is missing; the official archive contains it"):
        read_lines(path)
    for content, words in ((b"", "it is empty"), (b" \n\n", "it is empty"), (b"\xff\xfe", "it must be text")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{path} is damaged: {words}"):
            read_lines(path)
    path.write_bytes(b"a\tb \r\n\nc")
    assert read_lines(path) == ["a\tb", "", "c"]


def test_images_of_a_folder_are_listed_in_order_without_hidden_ones(tmp_path: Path) -> None:
    make_files(tmp_path, "b.PGM", "a/2.jpg", "a/notes.txt", ".venv/logo.png", "a/._2.jpg", "__MACOSX/1.png")
    assert image_files(tmp_path) == [tmp_path / "a" / "2.jpg", tmp_path / "b.PGM"]
    assert image_files(tmp_path / "a" / "._2.jpg") == [tmp_path / "a" / "._2.jpg"]
    (tmp_path / "a" / "2.jpg").unlink()
    with pytest.raises(ValueError, match=r"folder .*a must hold images \(\.bmp, .*\), got none"):
        image_files(tmp_path / "a")
    with pytest.raises(ValueError, match=r"image file not found: .*c\.png"):
        image_files(tmp_path / "c.png")
