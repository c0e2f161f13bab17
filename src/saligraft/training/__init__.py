"""Training runs: typed recipes, the trainer and its run folder, evaluation of finished runs."""

from saligraft.config.recipe import Recipe, make_recipe
from saligraft.config.recipe_file import bundled_recipes, dump_recipe, load_recipe
from saligraft.training.accelerator import leave_group
from saligraft.training.best_of import BestOf, train_best_of
from saligraft.training.evaluate import (
    Calibration,
    ClassErrors,
    CorruptionErrors,
    Localization,
    calibration,
    evaluate,
    evaluate_calibration,
    evaluate_classes,
    evaluate_corruptions,
    evaluate_localization,
    evaluate_occluded,
    evaluate_run,
    record_evaluation,
)
from saligraft.training.export import export_run
from saligraft.training.progress import Reporter, SilentReporter, make_reporter
from saligraft.training.results import EpochMetrics, EpochTiming, Result, Scores
from saligraft.training.saved_run import Predictions, SavedRun, load_run
from saligraft.training.stopping import RunStopped
from saligraft.training.trainer import Trainer, train

__all__ = [
    "BestOf",
    "Calibration",
    "ClassErrors",
    "CorruptionErrors",
    "EpochMetrics",
    "EpochTiming",
    "Localization",
    "Predictions",
    "Recipe",
    "Reporter",
    "Result",
    "RunStopped",
    "SavedRun",
    "Scores",
    "SilentReporter",
    "Trainer",
    "bundled_recipes",
    "calibration",
    "dump_recipe",
    "evaluate",
    "evaluate_calibration",
    "evaluate_classes",
    "evaluate_corruptions",
    "evaluate_localization",
    "evaluate_occluded",
    "evaluate_run",
    "export_run",
    "leave_group",
    "load_recipe",
    "load_run",
    "make_recipe",
    "make_reporter",
    "record_evaluation",
    "train",
    "train_best_of",
]
