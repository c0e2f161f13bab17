"""Without its package, an integration says what to install."""

import importlib
import sys

import pytest


@pytest.mark.parametrize("name", ["timm", "lightning", "transformers"])
def test_the_error_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, f"saligraft.integrations.{name}", raising=False)
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"this integration needs {name}: `pip install 'saligraft\[{name}\]'`"
    ):
        importlib.import_module(f"saligraft.integrations.{name}")
