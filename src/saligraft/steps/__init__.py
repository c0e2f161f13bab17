"""Training steps for methods other than batch mixers, and `training_step` for any method."""

from saligraft.steps.puzzlemix import PuzzleMixStep
from saligraft.steps.training_step import ChoiceStep, FeatureMixingStep, ViewsStep, resolve_step, training_step

__all__ = ["ChoiceStep", "FeatureMixingStep", "PuzzleMixStep", "ViewsStep", "resolve_step", "training_step"]
