"""The page of a single run: its result, its learning curve, pictures, its recipe."""

import json
import os
import tomllib
import warnings
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saligraft.reports.page import Section, facts_html, page_html, versions, write_page
from saligraft.reports.plots import Curve, learning_curves
from saligraft.reports.tables import ResultTable, html_table

if TYPE_CHECKING:
    from saligraft.training import Result

NEVER_MIXED = "No image was mixed: all epochs were warm-up."

METHOD_TITLES = {
    "none": "Plain training",
    "mixup": "Mixup",
    "cutmix": "CutMix",
    "attentive-cutmix": "Attentive CutMix",
    "saliencymix": "SaliencyMix",
    "puzzlemix": "PuzzleMix",
    "augmix": "AugMix",
}


def write_run_page(result: "Result") -> None:
    """Write the page of a finished run; a failure is only a warning, since the run is finished.

    Does nothing without a run folder, nor in processes other than the main one.

    Args:
        result: Of `train`.
    """
    from saligraft.training.run_gallery import pictures

    if result.folder is None or os.environ.get("RANK", "0") != "0":
        return
    shown, device = None, next(result.network.parameters()).device
    try:
        shown = pictures(result.recipe, result.network, result.test_data, device)
    except Exception as error:
        warnings.warn(f"the run is finished, but the pictures of report.html could not be made: {error}", stacklevel=2)
    try:
        write_run_report(result.folder, shown, note=NEVER_MIXED if result.recipe.never_mixes else "")
    except Exception as error:
        warnings.warn(f"the run is finished, but report.html could not be made: {error}", stacklevel=2)


def write_run_report(run_folder: str | Path, pictures: Section | None = None, note: str = "") -> Path:
    """Write `report.html` into a run folder from what stands there, pictures and a note; give back its path."""
    folder = Path(run_folder)
    result = json.loads(_read(folder, "result.json"))
    metrics = read_lines(folder / "metrics.jsonl")
    recipe = _read(folder, "recipe.toml")
    title = tomllib.loads(recipe).get("title") or f"{method_title(result['method'])} on {result['data']}"
    sections = [
        Section(title="Result", body=html_table(_result_table(result))),
        Section(title="Learning curve", body=_curves(metrics), intro="After every epoch, on all test images."),
        *([] if pictures is None else [pictures]),
        Section(title="How it was run", body=facts_html(_facts(folder, result), {"recipe.toml": recipe})),
    ]
    lead = (
        f"<b>{escape(method_title(result['method']))}</b>: {escape(str(result['network']))} on "
        f"<b>{escape(str(result['data']))}</b>, {result['epochs']} epochs, seed {result['seed']}."
    ) + (f" <b>{escape(note)}</b>" if note else "")
    return write_page(folder / "report.html", page_html(title, lead, sections))


def method_title(name: str) -> str:
    """The method's name as people write it: `saliency-grafting` is Saliency Grafting."""
    return METHOD_TITLES.get(name, name.replace("-", " ").title())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A `.jsonl` file as a list, one entry per line."""
    return [json.loads(line) for line in _read(path.parent, path.name).splitlines() if line.strip()]


def _read(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():
        raise ValueError(f"run folder must hold {name}, got {folder} without it")
    return path.read_text(encoding="utf-8")


def _result_table(result: dict[str, Any]) -> ResultTable:
    rows = tuple(
        (title, *(f"{result[name][kind]:.2f} %" for kind in ("best", "last10_mean", "final")))
        for title, name in (("Top-1 error", "top1_error"), ("Top-5 error", "top5_error"))
        if result.get(name)
    )
    return ResultTable(columns=("", "best epoch", "mean of last 10", "final"), rows=rows)


def _curves(metrics: list[dict[str, Any]]) -> str:
    curves = [
        Curve(name=title, runs=(tuple(float(line[name]) for line in metrics),))
        for title, name in (("Top-1 error", "top1_error"), ("Top-5 error", "top5_error"))
        if metrics and all(line.get(name) is not None for line in metrics)
    ]
    return learning_curves(curves) if curves else '<p class="muted">No epoch has ended yet.</p>'


def _facts(folder: Path, result: dict[str, Any]) -> dict[str, str]:
    facts = {"Run again": f"saligraft train {folder / 'recipe.toml'} --out ANOTHER_FOLDER"}
    timing = folder / "timing.jsonl"
    if timing.is_file():
        seconds = [line["seconds"] for line in read_lines(timing) if "epoch" in line]
        rates = [line["images_per_second"] for line in read_lines(timing) if "epoch" in line]
        if seconds:
            facts["Time"] = f"{sum(seconds):.0f} s, {sum(rates) / len(rates):,.0f} images/s"
    facts["Network"] = f"{result['network']}, {result['parameters']:,} parameters"
    return {**facts, **versions()}
