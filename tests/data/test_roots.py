"""Where files are looked for."""

import inspect
from pathlib import Path

import pytest

from saligraft.data import DATASETS
from saligraft.data.roots import data_root, default_root


def test_the_default_root_lies_under_the_working_folder() -> None:
    assert data_root("cifar100", None) == default_root("cifar100") == Path("data/cifar100")


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
