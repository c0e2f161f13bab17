"""[training] of a recipe: how long, how many at once, how precisely, and what to keep on the way."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saligraft.config.sections import Count, CountOrZero, Section
from saligraft.data.image_files import LARGEST_VIEW


class Phase(Section):
    """A part of the run with images of its own size (progressive resizing)."""

    from_epoch: CountOrZero
    """Epochs done when the phase begins."""
    size: Annotated[int, Field(ge=1, le=LARGEST_VIEW)]
    """Height and width of its training images, in pixels; tests keep theirs."""
    batch_size: Count
    """Images of one step during the phase, in place of training.batch_size."""


class TrainingSection(Section):
    """[training]: how long, how many at once, how precisely."""

    epochs: Count = 30
    """Passes over the training images."""
    batch_size: Count = 64
    """Images of one step, over all processes together."""
    accumulate: Count = 1
    """Parts that a step's batch is passed through the network in, one after the other; partners stay within a part."""
    phases: tuple[Phase, ...] = ()
    """Progressive resizing: parts of the run with other image and batch sizes, the first from_epoch 0."""
    warmup_epochs: CountOrZero = 0
    """First epochs without mixing, while saliency means nothing yet (paper §4.3); crop and flip stay."""
    copies: Annotated[int, Field(ge=1, le=100)] = 1
    """Independent mixed batches beside each original one; for methods that train on originals too."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of each label that is spread evenly over all classes."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the running mean of the weights, which is tested and saved in their place; 0 keeps none."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward pass; weights stay in fp32."""
    channels_last: bool = False
    """Memory order of weights and images; often faster, and a different rounding."""
    compile: bool = False
    """Compile the network's passes by torch.compile; often faster after a slow start, and a different rounding."""
    sync_batch_norm: bool = False
    """Let batch norm take its statistics over the images of all processes; on CUDA alone."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What a loss that is not finite does: stop the run, or skip the step."""
    checkpoint_epochs: Count = 1
    """Epochs from one checkpoint to the next."""
    checkpoint_steps: CountOrZero = 0
    """Steps from one checkpoint to the next within an epoch; 0 makes none there."""
    keep_checkpoints: Count = 2
    """Newest checkpoints that are kept."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers of Accelerate that also get the metrics, such as "tensorboard"."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        starts = [phase.from_epoch for phase in self.phases]
        if starts and (starts[0] != 0 or any(a >= b for a, b in pairwise(starts))):
            raise ValueError(f"phases must have from_epoch 0 first and then ascending, got {starts}")
        if starts and starts[-1] >= self.epochs:
            raise ValueError(f"phases must begin before the last epoch ({self.epochs}), got from_epoch {starts[-1]}")
        for batch_size in self.batch_sizes:
            if batch_size % self.accumulate:
                raise ValueError(f"batch_size must be a multiple of accumulate ({self.accumulate}), got {batch_size}")
        return self

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those of the phases in turn, or the one of the whole run."""
        return tuple(phase.batch_size for phase in self.phases) or (self.batch_size,)

    def phase(self, epoch: int) -> Phase | None:
        """The phase that an epoch, counted from 0, belongs to; None in a run without phases."""
        begun = [phase for phase in self.phases if phase.from_epoch <= epoch]
        return begun[-1] if begun else None

    def batch_size_in(self, epoch: int) -> int:
        """Images of one step in an epoch counted from 0, over all processes together."""
        phase = self.phase(epoch)
        return self.batch_size if phase is None else phase.batch_size
