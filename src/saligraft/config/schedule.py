"""[schedule] of a recipe: the learning rate as a pure function of the completed epochs, without state."""

import bisect
import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from saligraft.config.sections import Fraction, NotNegative, Positive, RecipeSection


class ScheduleSection(RecipeSection, ABC):
    """[schedule]: how the learning rate changes; `name` decides which other keys are valid."""

    warmup_epochs: NotNegative = 0.0
    """Epochs over which the learning rate first rises linearly."""
    warmup_start: Fraction = 0.1
    """Factor of the learning rate that the rise starts from."""

    def factor(self, epoch: float, epochs: int) -> float:
        """Return the factor of the recipe's learning rate.

        Args:
            epoch: Completed epochs, including the fraction of the current one.
            epochs: Epochs of the run.

        Example:
            >>> StepSchedule(name="step", milestones=[2], decay=0.5).factor(2.5, epochs=4)
            0.5
        """
        warm = epoch >= self.warmup_epochs
        rise = 1.0 if warm else self.warmup_start + (1.0 - self.warmup_start) * epoch / self.warmup_epochs
        return rise * self.shape(epoch, epochs)

    @abstractmethod
    def shape(self, epoch: float, epochs: int) -> float:
        """Return the factor without the rise at the start."""


class ConstantSchedule(ScheduleSection):
    """One learning rate throughout."""

    name: Literal["constant"]
    """Which schedule."""

    def shape(self, epoch: float, epochs: int) -> float:  # noqa: ARG002
        return 1.0


class StepSchedule(ScheduleSection):
    """The learning rate falls by a factor at given epochs, as in appendix B."""

    name: Literal["step"]
    """Which schedule."""
    milestones: tuple[Positive, ...]
    """Epochs at which the learning rate falls."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor at each of them."""

    def shape(self, epoch: float, epochs: int) -> float:  # noqa: ARG002
        return self.decay ** sum(epoch >= milestone for milestone in self.milestones)


class CosineSchedule(ScheduleSection):
    """The learning rate falls along half a cosine (Loshchilov & Hutter 2017, without restarts)."""

    name: Literal["cosine"] = "cosine"
    """Which schedule."""
    final: Fraction = 0.0
    """Factor at the end of the run."""

    def shape(self, epoch: float, epochs: int) -> float:
        return _anneal(1.0, self.final, epoch / epochs)


class OneCycleSchedule(ScheduleSection):
    """The learning rate rises to its peak and falls again, once, each along half a cosine (Smith 2018)."""

    name: Literal["one-cycle"]
    """Which schedule."""
    start: Fraction = 0.04
    """Factor at the start of the run."""
    peak: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Fraction of the run at which the factor is 1."""
    final: Fraction = 0.0
    """Factor at the end of the run."""

    def shape(self, epoch: float, epochs: int) -> float:
        progress = epoch / epochs
        if progress < self.peak:
            return _anneal(self.start, 1.0, progress / self.peak)
        return _anneal(1.0, self.final, (progress - self.peak) / (1 - self.peak))


class PiecewiseLinearSchedule(ScheduleSection):
    """The learning rate is linear between points, and constant after the last.

    With few points, the cyclic learning rate of fast ImageNet training (Wong et al. 2020).
    """

    name: Literal["piecewise-linear"]
    """Which schedule."""
    epochs: tuple[NotNegative, ...]
    """Epochs of the points, ascending; the same epoch twice is a jump."""
    factors: tuple[NotNegative, ...]
    """Factor of the learning rate at each of them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.epochs or len(self.epochs) != len(self.factors):
            counts = f"{len(self.epochs)} epochs and {len(self.factors)} factors"
            raise ValueError(f"epochs and factors must be equally many and at least one, got {counts}")
        if list(self.epochs) != sorted(self.epochs):
            raise ValueError(f"epochs must ascend, got {list(self.epochs)}")
        return self

    def shape(self, epoch: float, epochs: int) -> float:  # noqa: ARG002
        knots, factors = self.epochs, self.factors
        after = bisect.bisect_right(knots, epoch)
        if after in (0, len(knots)):
            return factors[0] if after == 0 else factors[-1]
        progress = (epoch - knots[after - 1]) / (knots[after] - knots[after - 1])
        return factors[after - 1] + (factors[after] - factors[after - 1]) * progress


Schedule = Annotated[
    ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PiecewiseLinearSchedule,
    Field(discriminator="name"),
]
SCHEDULES: dict[str, type[ScheduleSection]] = {
    "constant": ConstantSchedule,
    "step": StepSchedule,
    "cosine": CosineSchedule,
    "one-cycle": OneCycleSchedule,
    "piecewise-linear": PiecewiseLinearSchedule,
}


def _anneal(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2
