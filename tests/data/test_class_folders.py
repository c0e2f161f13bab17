"""Class folders: what counts as an image, what is passed over, and what is an error."""

from pathlib import Path

import pytest

from saligraft.data.class_folders import class_names, files_of, labelled_files, loose_image


def make_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_nested_folders_spaces_and_any_case_of_suffix_count_and_hidden_files_do_not(tmp_path: Path) -> None:
    make_files(tmp_path, "b/2.PNG", "b/deep er/1.JpEg", "a/x.tiff", "a/.x.txt", "a/Thumbs.db", ".git/x", "b/.c/y.doc")
    assert class_names(tmp_path) == ("a", "b")
    assert files_of(tmp_path, "b") == ["b/2.PNG", "b/deep er/1.JpEg"]
    files, labels = labelled_files(tmp_path, ("0", "a", "b"))
    assert list(files) == ["a/x.tiff", "b/2.PNG", "b/deep er/1.JpEg"]
    assert labels.tolist() == [1, 2, 2]


def test_what_is_no_image_is_named(tmp_path: Path) -> None:
    make_files(tmp_path, "a/1.png", "a/inner/labels.csv")
    with pytest.raises(ValueError, match=r"class folders must hold images alone \(.*\.png.*got .*inner/labels\.csv"):
        files_of(tmp_path, "a")


def test_empty_and_unknown_classes_and_broken_links_are_named(tmp_path: Path) -> None:
    make_files(tmp_path, "a/1.png", "b/.hidden")
    with pytest.raises(ValueError, match=r"class folder .*b must hold images, got none"):
        files_of(tmp_path, "b")
    with pytest.raises(ValueError, match=r"class folder .*b must be one of the 2 classes of train"):
        labelled_files(tmp_path, ("a", "c"))
    (tmp_path / "a" / "2.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match=r"2\.png is missing: a link that leads nowhere"):
        files_of(tmp_path, "a")


def test_links_to_folders_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    make_files(tmp_path, "elsewhere/1.png", "all/a/2.png")
    (tmp_path / "all" / "a" / "link").symlink_to(tmp_path / "elsewhere")
    assert files_of(tmp_path / "all", "a") == ["a/2.png", "a/link/1.png"]
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        files_of(tmp_path / "all", "a")


def test_a_loose_image_is_found(tmp_path: Path) -> None:
    make_files(tmp_path, "README.md", "a/1.png", ".x.png")
    assert loose_image(tmp_path) is None
    make_files(tmp_path, "2.jpg", "1.JPG")
    assert loose_image(tmp_path) == "1.JPG"
