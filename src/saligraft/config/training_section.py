"""[training] of a recipe: duration, batch size, precision and checkpoints."""

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import Field

from saligraft.config.sections import Count, CountOrZero, NotNegative, RecipeSection
from saligraft.import_path import call, check_arguments, import_object, is_import_path
from saligraft.names import LARGEST_VIEW, PassPlan

if TYPE_CHECKING:
    from torch import Tensor

LOSSES = {"cross-entropy": "mixed_cross_entropy", "softmax-bce": "mixed_softmax_binary_cross_entropy"}


class Phase(RecipeSection):
    """A part of the run with its own image size (progressive resizing)."""

    from_epoch: CountOrZero
    """Epochs done when the phase begins."""
    size: Annotated[int, Field(ge=1, le=LARGEST_VIEW)]
    """Height and width of its training images, in pixels; tests keep theirs."""
    batch_size: Count
    """Images per step during the phase, instead of training.batch_size."""


class TrainingSection(RecipeSection):
    """[training]: duration, batch size, precision and checkpoints."""

    epochs: Count = 30
    """Passes over the training images."""
    batch_size: Count = 64
    """Images per step, over all processes."""
    accumulate: Count = 1
    """Parts that a step's batch is split into, to accumulate their gradients; partners stay within a part."""
    phases: tuple[Phase, ...] = ()
    """Progressive resizing: parts of the run with other image and batch sizes, the first from_epoch 0."""
    warmup_epochs: CountOrZero = 0
    """First epochs without mixing, while saliency is not yet meaningful (paper §4.3); crop and flip stay."""
    originals: bool | None = None
    """Train on originals and mixed images, with any batch mixer; by default as the method's authors do."""
    passes: PassPlan | None = None
    """Images of a step: "both" originals and mixed, these in a "joint" pass, "mixed" alone, or by "remembered" maps."""
    copies: Annotated[int, Field(ge=1, le=100)] = 1
    """Independent mixed batches of each original one; for methods that train on originals too."""
    loss_weights: Annotated[tuple[NotNegative, ...], Field(min_length=1)] | None = None
    """Weights of the loss of the originals, if they are trained on, and of each copy; by default all 1."""
    loss_combination: Literal["mean", "sum"] | None = None
    """Whether these weighted losses are averaged, the default, or summed as by the authors of Puzzle Mix."""
    loss: str = "cross-entropy"
    """Loss: "cross-entropy"; "softmax-bce", binary, of the softmax, as Verma et al.; or "package.module:Name"."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Options of your own loss, passed as keywords."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each label spread evenly over all classes."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the moving average of the weights, which is tested and saved instead of them; 0: none."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward pass; weights stay in fp32."""
    channels_last: bool = False
    """Memory format of weights and images; often faster, with different rounding."""
    compile: bool = False
    """Compile the network's passes with torch.compile; often faster after a slow start, with different rounding."""
    sync_batch_norm: bool = False
    """Compute batch norm statistics over the images of all processes; CUDA only."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do if a loss is not finite: stop the run, or skip the step."""
    checkpoint_epochs: Count = 1
    """Epochs from one checkpoint to the next."""
    checkpoint_steps: CountOrZero = 0
    """Steps from one checkpoint to the next within an epoch; 0: none."""
    keep_checkpoints: Count = 2
    """How many of the newest checkpoints are kept."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers of Accelerate that also receive the metrics, such as "tensorboard"."""

    def check(self) -> Self:
        starts = [phase.from_epoch for phase in self.phases]
        if starts and (starts[0] != 0 or any(a >= b for a, b in pairwise(starts))):
            raise ValueError(f"phases must have from_epoch 0 first and then ascending, got {starts}")
        if starts and starts[-1] >= self.epochs:
            raise ValueError(f"phases must begin before the last epoch ({self.epochs}), got from_epoch {starts[-1]}")
        if is_import_path(self.loss):
            self.criterion()  # errors appear before any data is loaded
        elif self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)} or package.module:Name, got {self.loss!r}")
        elif self.loss_options:
            raise ValueError(f"loss_options must be left out for loss {self.loss!r}, got {self.loss_options}")
        if self.loss != "cross-entropy" and self.label_smoothing:
            raise ValueError(f"label_smoothing must be 0 for loss {self.loss!r}, got {self.label_smoothing}")
        for batch_size in self.batch_sizes:
            if batch_size % self.accumulate:
                raise ValueError(f"batch_size must be a multiple of accumulate ({self.accumulate}), got {batch_size}")
        return self

    def criterion(self) -> "Callable[..., Tensor]":
        """Build the loss, for a training step.

        Your own may be a class, which is built with the options, or a function, which is called with them. It gets
        logits and dense targets (B, K) or, with an attribute `takes_mixed_batch = True`, the `MixedBatch`.
        """
        if not is_import_path(self.loss):
            options = {"label_smoothing": self.label_smoothing} if self.loss == "cross-entropy" else {}
            from saligraft import losses

            return functools.partial(getattr(losses, LOSSES[self.loss]), **options)
        loss = import_object(self.loss, "loss")
        if isinstance(loss, type):
            return cast("Callable[..., Tensor]", call(self.loss, "loss", self.loss_options))
        check_arguments(self.loss, "loss", self.loss_options)
        return functools.partial(loss, **self.loss_options)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Of the phases in order, or of the entire run."""
        return tuple(phase.batch_size for phase in self.phases) or (self.batch_size,)
