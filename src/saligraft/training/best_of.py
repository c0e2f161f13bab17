"""Train with each of several values of one setting and report the better, as the paper does with CIFAR's weight decay.

The choice falls on test error, as in the paper (appendix B.1), and what is written says so.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import distributed

from saligraft.config.recipe_file import load_recipe
from saligraft.io.files import write_atomic
from saligraft.training.loop import train
from saligraft.training.results import Result

BEST = "best.json"


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """One run per value; `summaries` are those of their result.json."""

    setting: str
    folders: dict[str, Path]
    summaries: dict[str, dict[str, Any]]

    @property
    def best(self) -> str:
        """The value with the least top-1 error of any epoch; the first of equals."""
        return min(self.summaries, key=lambda value: float(self.summaries[value]["top1_error"]["best"]))


def parse_values(text: str) -> tuple[str, tuple[str, ...]]:
    """ "section.key=value,value" as the setting and its values."""
    setting, equals, values = text.partition("=")
    each = tuple(value.strip() for value in values.split(","))
    if not equals or not setting.strip() or not all(each) or len(set(each)) < max(2, len(each)):
        raise ValueError(f"best-of must read section.key=value,value with different values, got {text!r}")
    return setting.strip(), each


def train_best_of(
    recipe: str | Path,
    choice: str,
    out: str | Path,
    *,
    settings: Iterable[str] = (),
    seed: int | None = None,
    method: str | None = None,
    after_run: Callable[[Result], None] = lambda _: None,
    **options: Any,
) -> BestOf:
    """Train a recipe once per value of `choice`, "optimizer.weight_decay=0.0005,0.0001", in folders under `out`.

    `method` is that of `load_recipe`. `after_run` is called with the result of each run. `options` are those of
    `train`; with resume=True finished runs stay as they are. best.json says which is best.
    """
    setting, values = parse_values(choice)
    _refuse_foreign(Path(out) / BEST)
    folders = {value: Path(out) / f"{setting.rpartition('.')[2]}-{value}" for value in values}
    # All are loaded first: a mistake in the last must not show after days of training.
    recipes = {
        value: load_recipe(recipe, [*settings, f"{setting}={value}"], seed=seed, method=method) for value in values
    }
    summaries = {}
    for value in values:
        result = train(recipes[value], folders[value], **options)
        after_run(result)
        summaries[value] = result.summary
    found = BestOf(setting=setting, folders=folders, summaries=summaries)
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        write_atomic(Path(out) / BEST, json.dumps(_table(found), indent=2, allow_nan=False) + "\n")
    return found


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that no earlier call wrote."""
    if not path.exists():
        return
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        written = None
    if not (isinstance(written, dict) and written.keys() == {"setting", "picked_on", "best", "runs"}):
        raise ValueError(f"{path} is not the result of a best-of: choose another folder")


def _table(found: BestOf) -> dict[str, Any]:
    return {
        "setting": found.setting,
        "picked_on": "test error of the best epoch, as in the paper: the number is optimistic",
        "best": found.best,
        "runs": {value: {"folder": found.folders[value].name, **found.summaries[value]} for value in found.folders},
    }
