"""Saliency Grafting in the `Trainer` of Hugging Face Transformers, for image classifiers."""

import warnings
from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor, nn

from saligraft import checks
from saligraft.import_path import install_command
from saligraft.losses import Criterion, mixed_binary_cross_entropy, mixed_cross_entropy
from saligraft.methods.base import BatchMixer
from saligraft.methods.saliency_grafting import SaliencyGrafting
from saligraft.step import GraftingStep

try:
    from transformers import Trainer
    from transformers.modeling_outputs import ImageClassifierOutput
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"this integration needs transformers: {install_command('transformers')}") from error

__all__ = ["GraftingTrainer"]

# By the problem_type of a model's configuration; Transformers' own losses for the same.
CRITERIA: dict[str | None, Criterion] = {
    None: mixed_cross_entropy,
    "single_label_classification": mixed_cross_entropy,
    "multi_label_classification": mixed_binary_cross_entropy,
    "regression": nn.MSELoss(),
}


class GraftingTrainer(Trainer):
    """A `transformers.Trainer` that trains on originals and grafts; evaluation and prediction stay as they are.

    It is also a mixin for a Trainer of your own: ``class Mine(GraftingTrainer, YourTrainer)``. The loss is
    cross-entropy, with the Trainer's `label_smoothing_factor`; for a model whose configuration has
    ``problem_type="multi_label_classification"`` it is binary cross-entropy, for "regression", the default for one
    label, the squared error. With gradient accumulation, all batches of an update have the same weight. A training
    batch must hold the model's main input, as a rule `pixel_values`, and the labels, nothing else. Set
    `grafting_enabled` to False to stop mixing.

    Args:
        args: As in `Trainer`.
        method: A batch mixer; by default `SaliencyGrafting()`.
        step_options: Further options of `GraftingStep`, such as layer, criterion, copies or warmup_steps.
        kwargs: As in `Trainer`.

    Example:
        >>> from transformers import ResNetConfig, ResNetForImageClassification
        >>> sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        >>> model = ResNetForImageClassification(ResNetConfig(**sizes, num_labels=10))
        >>> trainer = GraftingTrainer(model=model, method=sg.SaliencyGrafting(temperature=0.2))
        >>> trainer.grafting_enabled
        True
    """

    def __init__(
        self,
        *args: Any,
        method: BatchMixer[Any] | None = None,
        step_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None:
            raise ValueError(
                "compute_loss_func must be None: pass a loss of dense targets as step_options['criterion']"
            )
        place = type(self).__mro__.index(GraftingTrainer)
        for base in type(self).__mro__[:place]:
            if "compute_loss" in vars(base) and not issubclass(base, GraftingTrainer):
                warnings.warn(
                    f"compute_loss of {base.__name__} comes before that of GraftingTrainer, so that nothing may be "
                    f"mixed: write class {type(self).__name__}(GraftingTrainer, {base.__name__})",
                    stacklevel=2,
                )
        bases = type(self).__mro__[place + 1 :]
        owner = next(base for base in bases if "compute_loss" in vars(base))
        if owner is not Trainer:
            warnings.warn(
                f"compute_loss of {owner.__name__} is used in evaluation alone: to train with its loss, pass it as "
                "step_options['criterion']",
                stacklevel=2,
            )
        for name in step_options or {}:
            checks.one_of("step_options", name, tuple(signature(GraftingStep).parameters)[1:])
        self.grafting_enabled = True
        self._step_options = {"method": SaliencyGrafting() if method is None else method, **(step_options or {})}
        self._step: GraftingStep | None = None
        self._stepped: nn.Module | None = None  # the model of the step, which may hold a compiled one in its place
        # Else the Trainer expects a sum over all batches of an update, already divided by their number of labels.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor | tuple[Tensor, Any]:
        """Both passes and their loss in training; the Trainer's own loss in evaluation.

        Args:
            model: The model as the Trainer wrapped it.
            inputs: Images and labels of one batch.
            return_outputs: Whether to return the outputs too; in training these are the loss and the originals' logits.
            kwargs: As in `Trainer`.

        Returns:
            The loss, or loss and outputs.
        """
        if not model.training:
            plain: Tensor = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
            return plain
        images, labels = self._images_and_labels(inputs)
        if self._step is None or self._stepped is not model:
            self._step, self._stepped = self._make_step(model), model
        self._step.enabled = self.grafting_enabled
        out = self._step(images, labels)
        return (out.loss, ImageClassifierOutput(loss=out.loss, logits=out.logits)) if return_outputs else out.loss

    def _images_and_labels(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        expected = [self.model.main_input_name, *self.label_names]
        if len(expected) != 2 or set(inputs) != set(expected):
            raise ValueError(
                f"a training batch must hold {' and '.join(map(repr, expected))}, the images and their labels, "
                f"got {', '.join(map(repr, inputs))}"
            )
        images, labels = (inputs[name] for name in expected)
        if labels.ndim == 2 and self._problem_type is None:
            raise ValueError("model.config.problem_type must be set for labels given as rows (B, K), got None")
        return images, labels

    @property
    def _problem_type(self) -> str | None:
        config = self.model.config
        return "regression" if config.problem_type is None and config.num_labels == 1 else config.problem_type

    def _make_step(self, model: nn.Module) -> GraftingStep:
        problem = self._problem_type
        checks.one_of("model.config.problem_type", problem, tuple(CRITERIA))
        criterion = CRITERIA[problem]
        if self.label_smoother is not None:
            factor = self.args.label_smoothing_factor
            if criterion is not mixed_cross_entropy and "criterion" not in self._step_options:
                raise ValueError(f"label_smoothing_factor must be 0 for {problem}, got {factor}")
            criterion = partial(mixed_cross_entropy, label_smoothing=factor)
        step = GraftingStep(model, **{"criterion": criterion, **self._step_options})
        # A checkpoint of the Trainer does not hold the step's state, but tells how many batches were seen.
        step.steps_taken = self.state.global_step * self.args.gradient_accumulation_steps
        return step
