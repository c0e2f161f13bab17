"""Recipes as TOML files: find, extend, override and write them.

A recipe may start with `extends = "NAME"`, a bundled recipe or a file beside it, and then contains only what differs.
A protocol (one data set and network) may also hold rows, each with a title of its own and the settings that differ:

```toml
title = "CIFAR-100, WRN-28-10"     # sections of the protocol follow: [data], [network], [training], ...

[rows.none]                        # what the file itself means
title = "plain training"

[rows.cutmix]                      # cifar100-wrn-28-10-cutmix, or cifar100-wrn-28-10 --method cutmix
title = "CutMix"
expected = [{ table = 3, metric = "best", top1 = [17.47, 0.24], top5 = [4.80, 0.42] }]
method.name = "cutmix"

[rows.cutmix-shake-drop]
extends = "cutmix"                 # another row
network.options.shake_drop = true
```

`expected` lists known results in %, each `[mean]` or `[mean, standard error]` of `top1`, `top5` (errors) or
`localization` (accuracy). `table` is the paper's, absent if measured here; `metric` is a key of result.json, absent if
the paper does not specify it; `quoted` names the paper's source; `set`, `occlude` and `on` list other differences.
"""

import datetime
import difflib
import functools
import json
import os
import re
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saligraft.names import listed

if TYPE_CHECKING:
    from saligraft.config.recipe import Recipe

Table = dict[str, Any]
PLAIN = "none"  # the row for the file itself
OF_A_NAME = ("options", "momentum", "nesterov", "betas")  # what belongs to the name of a section, such as an optimiser
FOLDER = Path(__file__).parents[1] / "recipes"
RECIPE, RESULT, TIMING, MARKER = "recipe.toml", "result.json", "timing.jsonl", "run.json"  # of a run folder
OCCUPIED = (
    "is not empty: choose another (--out DIR), overwrite it (--overwrite, in Python overwrite=True) or resume its run "
    "(--resume)"
)


@functools.cache
def bundled_protocols() -> Mapping[str, dict[str, Table]]:
    """Read the protocols that come with the package, each one data set and network.

    Returns:
        Protocol → row → title, paper, `expected` and settings, in the order of the paper's tables. Read only.
    """
    return {file.stem: read_rows(file) for file in sorted(FOLDER.glob("*.toml"), key=lambda file: file.stem)}


def bundled_recipes() -> dict[str, tuple[str, str]]:
    """List the recipes that come with the package.

    Returns:
        Name → protocol and row of each recipe.

    Example:
        >>> bundled_recipes()["cifar100-wrn-28-10-cutmix"]
        ('cifar100-wrn-28-10', 'cutmix')
    """
    return {
        protocol if row == PLAIN else f"{protocol}-{row}": (protocol, row)
        for protocol, rows in bundled_protocols().items()
        for row in rows
    }


def load_recipe(
    path_or_name: str | Path, overrides: Iterable[str] = (), seed: int | None = None, *, method: str | None = None
) -> "Recipe":
    """Read and validate a recipe.

    Args:
        path_or_name: A recipe file, or the name of a bundled recipe.
        overrides: Settings to change, "section.key=value"; later ones win.
        seed: Seed to use instead of the recipe's.
        method: Row of the protocol to use. If there is no such row, the method with its default options, with a
            warning.

    Returns:
        The validated recipe.

    Example:
        >>> load_recipe("shapes-wrn-10-2", ["training.epochs=3"], method="cutmix").title
        'Shapes, WRN-10-2, CutMix'
    """
    from saligraft.config.recipe import make_recipe  # needs pydantic, which finding and listing recipes does not

    file, row = find_recipe(path_or_name)
    changed: Table = {}
    has_row = True
    if method is not None:
        if row != PLAIN:
            raise ValueError(f"method must be left out for {path_or_name}, a row of {file.stem}, got {method!r}")
        row = method.replace("+", "-")  # cutout+mixup is the row cutout-mixup
        has_row = row in _rows(file)
        if not has_row:
            row, changed = PLAIN, {"method": {"name": method}}
    for override in overrides:
        # Options set before or after a new name both belong to it: old options are dropped below, and only there.
        changed = merge(changed, parse_override(override), keep_options=True)
    table = merge(_read_with_bases(file, row), changed)
    _shorten_warmup(table, changed)
    if "method" in changed or any("name" in changed.get(section, {}) for section in ("data", "network")):
        # The title and source of the recipe do not apply to other data, networks or methods.
        table |= {"title": "", "paper": ""} | {key: changed[key] for key in ("title", "paper") if key in changed}
    if seed is not None:
        table["seed"] = seed
    recipe = make_recipe(table, origin=str(path_or_name))
    if not has_row:  # known only now to be the name of a method
        _warn(
            f"{path_or_name} has no row {method!r}, so the paper has no result for it; the method's default options "
            "are used",
            stacklevel=3,
        )
    return recipe


def _shorten_warmup(table: Table, changed: Table) -> None:
    """Shorten the warm-up if overrides make the run no longer than it, so that the last epoch still mixes."""
    by_user = changed.get("training")
    if isinstance(by_user, Mapping) and "warmup_epochs" not in by_user:
        epochs, warmup = by_user.get("epochs"), table["training"].get("warmup_epochs")
        if type(epochs) is type(warmup) is int and 1 <= epochs <= warmup:
            table["training"] = {**table["training"], "warmup_epochs": epochs - 1}
            _warn(
                f"training.warmup_epochs is shortened from {warmup} to {epochs - 1}, as training.epochs is set to "
                f"{epochs}",
                stacklevel=4,
            )


def _warn(message: str, stacklevel: int) -> None:
    """Warn in the first process alone: all processes of a run read the same recipe."""
    if os.environ.get("RANK", "0") == "0":
        warnings.warn(message, stacklevel=stacklevel)


def find_recipe(path_or_name: str | Path) -> tuple[Path, str]:
    """Find a recipe.

    Args:
        path_or_name: A recipe file, or the name of a bundled recipe.

    Returns:
        Its file and the row in it.
    """
    path = Path(path_or_name)
    if path.is_file():
        return path, PLAIN
    if (path / RECIPE).is_file():
        raise ValueError(
            f"{path} is a run folder: resume its run with saligraft train {path} --resume, or repeat it with "
            f"saligraft train {path / RECIPE}"
        )
    bundled = bundled_recipes()
    if str(path_or_name) not in bundled:
        longer = [protocol for protocol in bundled_protocols() if protocol.startswith(str(path_or_name))]
        near = longer or difflib.get_close_matches(str(path_or_name), bundled, n=3)
        hint = (f"similar: {', '.join(near)}; " if near else "") + f"all {len(bundled)} of them: saligraft list recipes"
        raise ValueError(f"no recipe file or bundled recipe {str(path_or_name)!r}; {hint}")
    protocol, row = bundled[str(path_or_name)]
    return FOLDER / f"{protocol}.toml", row


def recipe_of_run(folder: str | Path) -> Path:
    """Find the recipe in a run folder.

    Args:
        folder: The run folder; for any other folder, the error lists runs below it.

    Returns:
        The file.
    """
    file = Path(folder) / RECIPE
    if file.is_file():
        return file
    below = [path.parent for depth in ("*", "*/*", "*/*/*") for path in sorted(Path(folder).glob(f"{depth}/{RECIPE}"))]
    runs = f"; runs below it: {listed(below)}" if below else ""
    if not Path(folder).exists():
        raise ValueError(f"no run folder {folder}")
    raise ValueError(f"{folder} is not a run folder: it holds no {RECIPE}{runs}")


def read_rows(file: Path) -> dict[str, Table]:
    """Read one recipe file.

    Args:
        file: A recipe with or without rows.

    Returns:
        Row → its settings laid over those of the file, with its title and `expected`. "none" is the file itself.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from error
    tables = {PLAIN: table}
    rows = table.pop("rows") if isinstance(table.get("rows"), dict) else {}
    for row, settings in rows.items():
        if not isinstance(settings, dict) or settings.get("extends", PLAIN) not in [*tables]:
            raise ValueError(f"{file}: rows.{row} must be a table, and may extend an earlier row, got {settings}")
        base = tables[settings.pop("extends", PLAIN)]
        tables[row] = merge(base, {"expected": []} | settings) | {
            "title": f"{table.get('title', file.stem)}, {settings.get('title', row)}"
        }
    return tables


def _rows(file: Path) -> Mapping[str, Table]:
    """The rows of a recipe file; bundled ones are read once. Read only."""
    return bundled_protocols()[file.stem] if file.parent == FOLDER else read_rows(file)


def parse_override(text: str) -> Table:
    """Parse one setting of the command line.

    Args:
        text: "section.key=value"; the value as in TOML, a string also without quotation marks.

    Returns:
        The setting as nested tables.

    Example:
        >>> parse_override("network.name=wrn-10-2")
        {'network': {'name': 'wrn-10-2'}}
    """
    name, equals, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise ValueError(f"a setting must read section.key=value, got {text!r}")
    try:
        table: Any = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        table = value.strip()
    if isinstance(table, datetime.date | datetime.time):
        table = value.strip()  # no setting is a date, but an unquoted title or folder may look like one
    for key in reversed(keys):
        table = {key: table}
    return dict(table)


def load_choices(
    path_or_name: str | Path,
    choice: str,
    overrides: Iterable[str] = (),
    seeds: Sequence[int] = (),
    *,
    method: str | None = None,
) -> tuple[str, dict[str, list["Recipe"]]]:
    """Read a recipe with each of several values of one setting, and each seed.

    Args:
        path_or_name: A recipe file, or the name of a bundled recipe.
        choice: "section.key=value,value".
        overrides: Settings of all runs.
        seeds: Replace the recipe's seed.
        method: A row of the protocol.

    Returns:
        The setting, and by value the recipes of all seeds, whose titles name value and seed.

    Example:
        >>> setting, recipes = load_choices("shapes-wrn-10-2", "optimizer.lr=0.1,0.2")
        >>> setting, recipes["0.2"][0].optimizer.lr, recipes["0.2"][0].title
        ('optimizer.lr', 0.2, 'Shapes, WRN-10-2, plain training, lr = 0.2')
    """
    setting, equals, choices = (part.strip() for part in choice.partition("="))
    values = [value.strip() for value in choices.split(",")]
    if not equals or not setting or not all(values) or len(set(values)) < max(2, len(values)):
        raise ValueError(f"best-of must read section.key=value,value with different values, got {choice!r}")
    if setting == "seed":
        raise ValueError(f"best-of must choose a setting other than the seed, got {choice!r}; seeds are set by --seeds")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ, got {', '.join(map(str, seeds))}")
    recipes: dict[str, list[Recipe]] = {}
    for value in values:
        for seed in seeds or (None,):
            recipe = load_recipe(path_or_name, [*overrides, f"{setting}={value}"], seed=seed, method=method)
            varied = f"{setting.rpartition('.')[2]} = {value}" + f", seed {seed}" * (len(seeds) > 1)
            recipes.setdefault(value, []).append(recipe.model_copy(update={"title": f"{recipe.heading}, {varied}"}))
    return setting, recipes


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], *, keep_options: bool = False) -> Table:
    """Lay `changes` over `base`, table by table.

    A section whose `name` changes loses the settings of the old one: its options, for an optimiser also momentum and
    betas, and for a method or schedule everything else. Another `loss` loses the options of the old one.

    Args:
        base: Table to start from; not changed.
        changes: Values that replace those of `base`.
        keep_options: Whether a section keeps the settings of its old name, and of its old loss.

    Returns:
        A new table.
    """
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        merged[key] = change
        if isinstance(old, Mapping) and isinstance(change, Mapping):
            if not keep_options and "name" in change and change["name"] != old.get("name"):
                old = {} if key in ("method", "schedule") else {k: v for k, v in old.items() if k not in OF_A_NAME}
            if not keep_options and "loss" in change and change["loss"] != old.get("loss"):
                old = {k: v for k, v in old.items() if k != "loss_options"}
            merged[key] = merge(old, change, keep_options=keep_options)
    return merged


def dump_recipe(recipe: "Recipe") -> str:
    """Write a recipe as TOML.

    Args:
        recipe: Recipe to write.

    Returns:
        Every setting, so that the text depends on no other recipe or default.

    Example:
        >>> from saligraft.config.recipe import Recipe
        >>> dump_recipe(Recipe(title="Mine")).splitlines()[0]
        'title = "Mine"'
    """
    return dump_toml(recipe.model_dump(mode="python"))


def dump_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Write a table as TOML.

    Args:
        table: Strings, numbers, booleans, lists and tables of them; None, which TOML does not have, is left out.
        path: Keys of the table within the file.

    Returns:
        The text of the table and of those in it.
    """
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    lines = [f"{_key(key)} = {toml_value(value)}\n" for key, value in plain.items()]
    header = f"\n[{'.'.join(_key(part) for part in path)}]\n" if path and lines else ""
    inner = [dump_toml(v, (*path, k)) for k, v in table.items() if isinstance(v, Mapping)]
    return header + "".join(lines) + "".join(inner)


def _read_with_bases(file: Path, row: str = PLAIN, seen: tuple[Path, ...] = ()) -> Table:
    if file.resolve() in seen:
        raise ValueError(f"{file} extends itself, through {', '.join(path.name for path in seen)}")
    table = dict(_rows(file)[row])
    table.pop("expected", None)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str):
        raise ValueError(f"{file}: extends must name a recipe, got {base!r}")
    beside = [path for path in (file.parent / base, file.parent / f"{base}.toml") if path.is_file()]
    base_file, base_row = (beside[0], PLAIN) if beside else find_recipe(base)
    return merge(_read_with_bases(base_file, base_row, (*seen, file.resolve())), table)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write one value as TOML.

    Args:
        value: A string, number, boolean, list or table.

    Returns:
        The value in TOML's form, a table on one line.
    """
    if isinstance(value, str | bool):
        # JSON's escapes are TOML's, except for the delete character, which JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {toml_value(item)}' for name, item in value.items())} }}"
    raise TypeError(f"a recipe holds strings, numbers, booleans, lists and tables of them, got {type(value).__name__}")
