"""Train with each of several values of one setting and report the best, as the paper does with CIFAR's weight decay.

The choice is made on test error, as in the paper (appendix B.1), and the output says so.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from saligraft.config.recipe_file import load_choices
from saligraft.io.files import write_atomic
from saligraft.training.accelerator import is_main_process
from saligraft.training.results import Result
from saligraft.training.trainer import train

BEST = "best.json"


@dataclass(frozen=True, kw_only=True)
class BestOf:
    """One run per value and seed.

    Args:
        setting: "section.key".
        folders: Run folders by value, in the order of the seeds.
        summaries: Contents of result.json by value, likewise.
    """

    setting: str
    folders: dict[str, tuple[Path, ...]]
    summaries: dict[str, tuple[dict[str, Any], ...]]

    @property
    def errors(self) -> dict[str, float]:
        """Lowest top-1 error of any epoch by value, mean over the seeds."""
        return {
            value: fmean(summary["top1_error"]["best"] for summary in summaries)
            for value, summaries in self.summaries.items()
        }

    @property
    def best(self) -> str:
        """The value with the lowest of these errors; ties go to the first."""
        return min(self.errors, key=self.errors.__getitem__)


def train_best_of(
    recipe: str | Path,
    choice: str,
    out: str | Path,
    *,
    settings: Iterable[str] = (),
    seeds: Sequence[int] = (),
    method: str | None = None,
    after_run: Callable[[Result], None] = lambda _: None,
    **options: Any,
) -> BestOf:
    """Train a recipe with each value of a setting and each seed, in folders under `out`, and write best.json.

    One value is the best of all seeds together, by the mean of their errors, as the paper reports the better of two
    settings over its three runs.

    Args:
        recipe: A recipe file or the name of a bundled recipe.
        choice: Setting and values, such as "optimizer.weight_decay=0.0005,0.0001".
        out: Folder of the run folders.
        settings: Overrides for all runs, "section.key=value".
        seeds: Replace the recipe's seed.
        method: A row of the recipe, as in `load_recipe`.
        after_run: Called with each run's result, in every process.
        **options: Options of `train`; with resume=True finished runs are not trained again.

    Returns:
        Folders and summaries of all runs, and the best value.

    Example:
        >>> import tempfile
        >>> from saligraft.training import SilentReporter, train_best_of
        >>> tiny = ["data.options.per_class=2", "data.options.size=16", "network.name=wrn-10-1"]
        >>> tiny += ["training.epochs=1", "training.batch_size=10"]
        >>> with tempfile.TemporaryDirectory() as out:
        ...     lr = "optimizer.lr=0.1,0.01"
        ...     result = train_best_of("shapes-wrn-10-2", lr, out, settings=tiny, reporter=SilentReporter())
        >>> sorted(result.errors)
        ['0.01', '0.1']
    """
    setting, recipes = load_choices(recipe, choice, settings, seeds, method=method)
    _refuse_foreign(Path(out) / BEST)
    names = {value: f"{setting.rpartition('.')[2]}-{value}" for value in recipes}
    folders = {
        value: tuple(Path(out) / (f"{name}-seed{run.seed}" if len(seeds) > 1 else name) for run in recipes[value])
        for value, name in names.items()
    }
    summaries = {}
    for value in recipes:
        results = []
        for chosen, folder in zip(recipes[value], folders[value], strict=True):
            result = train(chosen, folder, **options)
            results.append(result.summary)
            after_run(result)
        summaries[value] = tuple(results)
    outcome = BestOf(setting=setting, folders=folders, summaries=summaries)
    if is_main_process():
        table = {
            "setting": setting,
            "picked_on": "test error of the best epoch, mean over seeds, as in the paper: the number is optimistic",
            "best": outcome.best,
            "runs": {
                value: {
                    "mean_top1_error": outcome.errors[value],
                    "seeds": [
                        {"folder": folder.name, **summary}
                        for folder, summary in zip(folders[value], summaries[value], strict=True)
                    ],
                }
                for value in recipes
            },
        }
        write_atomic(Path(out) / BEST, json.dumps(table, indent=2, allow_nan=False) + "\n")
    return outcome


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
