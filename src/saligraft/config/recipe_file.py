"""Recipes as TOML files: find, extend, override and write them.

A recipe may open with `extends = "NAME"`, a bundled recipe or a file beside it, and then says only what differs.
"""

import datetime
import difflib
import json
import math
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from saligraft.config.recipe import Recipe, make_recipe

Table = dict[str, Any]
EXTENDS = "extends"
SUFFIX = ".toml"
_UNTRUE_OF_OTHERS = ("title", "paper")  # what a recipe says of itself


def bundled_recipes() -> dict[str, Path]:
    """Name → file of the recipes that come with the package."""
    folder = Path(str(resources.files("saligraft"))) / "recipes"
    return {file.stem: file for file in sorted(folder.glob(f"*{SUFFIX}"), key=lambda file: file.stem)}


def bundled_titles() -> dict[str, str]:
    """Name → title of the recipes that come with the package; quicker than loading them, which checks each."""
    return {name: str(_read_with_bases(file, seen=())["title"]) for name, file in bundled_recipes().items()}


def load_recipe(path_or_name: str | Path, overrides: Iterable[str] = (), seed: int | None = None) -> Recipe:
    """Read a recipe file, or a bundled recipe by name; `overrides` are "section.key=value", later ones win."""
    file = find_recipe(path_or_name)
    table = _read_with_bases(file, seen=())
    settings = [parse_override(override) for override in overrides]
    # Names first: a new name empties what the old name's options meant, whatever the order of writing.
    changed: Table = {}
    for setting in sorted(settings, key=_after_names):
        changed = merge(changed, setting)
        table = merge(table, setting)
    _shorten_warmup(table, changed)
    table |= {name: changed.get(name, "") for name in _UNTRUE_OF_OTHERS if _is_another(changed)}
    if seed is not None:
        table["seed"] = seed
    return make_recipe(table, origin=str(path_or_name))


def _shorten_warmup(table: Table, changed: Table) -> None:
    """Where overrides shorten a run, but not its warm-up, to no more than the warm-up: leave the last epoch to mix."""
    by_user = changed.get("training")
    if not isinstance(by_user, Mapping) or "epochs" not in by_user or "warmup_epochs" in by_user:
        return
    epochs, warmup = by_user["epochs"], table["training"].get("warmup_epochs")
    if type(epochs) is type(warmup) is int and 1 <= epochs <= warmup:
        table["training"] = {**table["training"], "warmup_epochs": epochs - 1}
        warnings.warn(
            f"training.warmup_epochs is shortened from {warmup} to {epochs - 1}, as training.epochs is set to {epochs}",
            stacklevel=3,
        )


def _is_another(changed: Mapping[str, Any]) -> bool:
    """Whether other data, another network or another method is trained than the recipe's title says."""
    return "method" in changed or any("name" in changed.get(section, {}) for section in ("data", "network"))


def find_recipe(path_or_name: str | Path) -> Path:
    """The file of a path or of a bundled recipe's name."""
    file = Path(path_or_name)
    if file.is_file():
        return file
    bundled = bundled_recipes()
    if str(path_or_name) in bundled:
        return bundled[str(path_or_name)]
    near = difflib.get_close_matches(str(path_or_name), bundled, n=3)
    hint = f"near: {', '.join(near)}; " if near else ""
    hint += f"all {len(bundled)} of them: saligraft list recipes"
    raise ValueError(f"no recipe file or bundled recipe {str(path_or_name)!r}; {hint}")


def parse_override(text: str) -> Table:
    """ "section.key=value" as a nested table; the value as in TOML, a string also without quotation marks."""
    name, equals, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise ValueError(f"a setting must read section.key=value, got {text!r}")
    table: Any = _parse_value(value.strip())
    for key in reversed(keys):
        table = {key: table}
    return dict(table)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """`base` with `changes` laid over it, table by table.

    A section that gets another `name` loses what belonged to the old one: its options, and all else of a method or
    schedule.
    """
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        if not (isinstance(old, Mapping) and isinstance(change, Mapping)):
            merged[key] = change
            continue
        if "name" in change and change["name"] != old.get("name"):
            old = {} if key in ("method", "schedule") else {k: v for k, v in old.items() if k != "options"}
        merged[key] = merge(old, change)
    return merged


def dump_recipe(recipe: Recipe) -> str:
    """The complete recipe as TOML: every setting written out, so that it stands without its bases and defaults."""
    return dump_toml(recipe.model_dump(mode="python"))


def dump_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """A table as TOML; None, which TOML does not know, is left out."""
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{_key(key)} = {toml_value(value)}\n" for key, value in plain.items()]
    header = f"\n[{'.'.join(_key(part) for part in path)}]\n" if path and lines else ""
    inner = [dump_toml(v, (*path, k)) for k, v in table.items() if isinstance(v, Mapping)]
    return header + "".join(lines) + "".join(inner)


def _read_with_bases(file: Path, seen: tuple[Path, ...]) -> Table:
    if file.resolve() in seen:
        raise ValueError(f"{file} extends itself, by way of {', '.join(f.name for f in seen)}")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from error
    base = table.pop(EXTENDS, None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise ValueError(f"{file}: {EXTENDS} must name a recipe, got {base!r}")
    beside = [file.parent / base, file.parent / f"{base}{SUFFIX}"]
    base_file = next((path for path in beside if path.is_file()), None) or find_recipe(base)
    return merge(_read_with_bases(base_file, (*seen, file.resolve())), table)


def _after_names(setting: Table) -> float:
    """How deep the name stands that a setting sets, as in method.saliency.name; infinity where it sets none."""
    depth, inner = 0, setting
    while isinstance(inner, dict) and inner:
        if depth and "name" in inner:
            return depth
        depth, inner = depth + 1, next(iter(inner.values()))
    return math.inf


def _parse_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # No setting is a date, but a bare title or folder may look like one.
    return text if isinstance(value, datetime.date | datetime.time) else value


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {toml_value(item)}' for name, item in value.items())} }}"
    raise TypeError(f"a recipe holds strings, numbers, booleans, lists and tables of them, got {type(value).__name__}")
