"""Folders of finished runs that were never trained, for `saligraft compare`."""

import json
from pathlib import Path

from saligraft.training import dump_recipe, make_recipe

ERRORS = {"none": (40.0, 42.0, 45.0), "cutmix": (38.0, 39.5, 43.5)}


def finished(folder: Path, method: str, seed: int, error: float, **training: int) -> Path:
    """An invented run of two epochs."""
    folder.mkdir(parents=True)
    table = {"seed": seed, "method": {"name": method}, "training": {"epochs": 2, "warmup_epochs": 0, **training}}
    (folder / "recipe.toml").write_text(dump_recipe(make_recipe(table)))
    lines = [{"epoch": epoch, "top1_error": value} for epoch, value in ((1, 80.0), (2, error))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timing.jsonl").write_text(json.dumps({"epoch": 1, "cpu_seconds": 7.4}) + "\n")
    top1, top5 = {"best": error, "last10_mean": error + 1}, {"best": error / 2}
    (folder / "result.json").write_text(json.dumps({"top1_error": top1, "top5_error": top5}))
    return folder


def write_runs(folder: Path) -> Path:
    """Three seeds each of plain training and CutMix."""
    for method, errors in ERRORS.items():
        for seed, error in enumerate(errors):
            finished(folder / f"{method}-{seed}", method, seed, error)
    return folder
