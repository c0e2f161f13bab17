"""Import paths: what they are, and one line for everything that can go wrong."""

import sys
from pathlib import Path

import pytest

from saligraft.import_path import call, import_object, is_import_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine:Net", True),
        ("a.b_c.d:Outer.Inner", True),
        ("torchvision.datasets:CIFAR10", True),
        ("torchvision:resnet18", False),
        ("timm:resnet18.a1_in1k", False),
        ("folder:photos", False),
        ("folder:/data/photos", False),
        ("given:ResNet", False),
        ("wrn-10-2", False),
        ("mine:", False),
        ("mine:a-b", False),
        (":Net", False),
    ],
)
def test_names(name: str, expected: bool) -> None:
    assert is_import_path(name) is expected


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, which is not on the path."""
    (tmp_path / "in_this_folder.py").write_text(
        "NUMBER = 3\nclass Thing:\n    def __init__(self, size):\n        self.size = 12 // size\n"
    )
    (tmp_path / "broken_code.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "raising_code.py").write_text("raise KeyError('two\\nlines')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("in_this_folder", "broken_code", "raising_code"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "in_this_folder"


def test_a_module_of_the_current_folder(module: str) -> None:
    assert import_object(f"{module}:Thing", "network").__name__ == "Thing"
    assert call(f"{module}:Thing", "network", {"size": 4}).size == 3


def test_mistakes(module: str) -> None:
    for path, arguments, words in (
        ("no_such_module.x:Thing", {}, "there is no module 'no_such_module', neither installed nor in the current"),
        ("broken_code:Thing", {}, "its module raises ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raising_code:Thing", {}, "its module raises KeyError: 'two"),
        (f"{module}:Thin", {}, "in_this_folder has no 'Thin'; did you mean 'Thing'?"),
        (f"{module}:NUMBER", {}, "must be a class or a function, got int"),
        (f"{module}:Thing", {"side": 1}, "has no option 'side'; valid: size"),
        (f"{module}:Thing", {}, "cannot be built: TypeError: "),
        (f"{module}:Thing", {"size": 0}, "cannot be built: ZeroDivisionError: "),
    ):
        with pytest.raises(ValueError, match=f"^network '{path}'") as raised:
            call(path, "network", arguments)
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)
