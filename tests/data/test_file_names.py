"""Packed names are the names."""

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.data.file_names import FileNames

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
