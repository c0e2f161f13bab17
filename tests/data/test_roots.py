"""Where files are looked for."""

from pathlib import Path

from saligraft.data.roots import default_root


def test_the_default_root_lies_under_the_working_folder() -> None:
    assert default_root("cifar100") == Path("data/cifar100")
