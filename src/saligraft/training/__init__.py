"""Training runs: typed recipes, the trainer and its run folder, evaluation of finished runs."""

from saligraft.config.recipe import Recipe, make_recipe
from saligraft.config.recipe_file import bundled_recipes, dump_recipe, load_recipe
from saligraft.training.accelerator import leave_group
from saligraft.training.best_of import BestOf, train_best_of
from saligraft.training.evaluate import evaluate, evaluate_occluded, evaluate_run
from saligraft.training.progress import Reporter, SilentReporter, make_reporter
from saligraft.training.results import EpochMetrics, EpochTiming, Result, Scores
from saligraft.training.stopping import RunStopped
from saligraft.training.trainer import Trainer, train

__all__ = [
    "BestOf",
    "EpochMetrics",
    "EpochTiming",
    "Recipe",
    "Reporter",
    "Result",
    "RunStopped",
    "Scores",
    "SilentReporter",
    "Trainer",
    "bundled_recipes",
    "dump_recipe",
    "evaluate",
    "evaluate_occluded",
    "evaluate_run",
    "leave_group",
    "load_recipe",
    "make_recipe",
    "make_reporter",
    "train",
    "train_best_of",
]
