"""Training steps of the kinds beside batch mixers, and the step that trains any method."""

from saligraft.steps.puzzlemix import PuzzleMixStep
from saligraft.steps.training_step import ChoiceStep, FeatureMixingStep, ViewsStep, resolve_step, training_step

__all__ = ["ChoiceStep", "FeatureMixingStep", "PuzzleMixStep", "ViewsStep", "resolve_step", "training_step"]
