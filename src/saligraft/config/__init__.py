"""Recipes: typed sections, and the TOML files they are read from and written to."""

from importlib.util import find_spec

from saligraft.import_path import install_command

# Every package of the laboratory imports this one, so its extra is looked for here.
for _name in ("pydantic", "accelerate", "safetensors", "rich"):
    if find_spec(_name) is None:
        raise ModuleNotFoundError(f"the laboratory needs {_name}: {install_command('lab')}", name=_name)
