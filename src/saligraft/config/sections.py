"""The sections of a recipe: typed, each field with its meaning, unknown keys refused.

[method] stands in `method_section.py`, [training] in `training_section.py`.
"""

import inspect
from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from saligraft import data as datasets
from saligraft.checks import not_absurd, utf8
from saligraft.config import schedule as shapes
from saligraft.networks import build_network

# Upper bounds stand far above any use, and below what overflows, never ends or fills the memory.
Count = Annotated[int, Field(ge=1, le=10**6)]
CountOrZero = Annotated[int, Field(ge=0, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
MOST_PARAMETERS = 10**10


class Section(BaseModel):
    """What all sections share: typed without coercion, read-only, and a list of valid keys for a wrong one."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys_and_tuples(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        for name in table:
            if name not in cls.model_fields:
                raise ValueError(f"unknown key {name!r}; valid: {', '.join(cls.model_fields)}")
            if isinstance(table[name], str):
                utf8(name, table[name])
        return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


class DataSection(Section):
    """[data]: what to train and test on."""

    name: str = "shapes"
    """A data set of `saligraft list data`; "folder:PATH" is a folder of class folders."""
    root: str | None = None
    """Folder of the data set's files; `shapes` needs none."""
    options: dict[str, Any] = {}
    """Options of the data set, such as size and per_class of `shapes`; what is not given gets its default."""
    pad: CountOrZero = 4
    """Pixels of padding that the random crop of images in memory may take in, on each side."""
    flip: bool = True
    """Mirror training images at random."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes, for each process that trains, that read what does not lie in memory; 0: none but itself."""
    per_class_subset: Count | None = None
    """Training images of each class, drawn by subset_seed; smaller subsets lie in larger ones. All, if left out."""
    subset_seed: Seed = 0
    """Seed of the subset, which stays the same under the run's other seeds."""

    @model_validator(mode="after")
    def _complete_options(self) -> Self:
        name, _ = datasets.resolve(self.name, self.root)
        accepted = inspect.signature(datasets.DATASETS[name]).parameters.values()
        options = [p for p in accepted if p.name not in ("split", "root")]
        defaults = {p.name: ... if p.default is p.empty else p.default for p in options}
        complete_options(self.options, defaults, f"data set {self.name}")
        return self


class NetworkSection(Section):
    """[network]: what to train."""

    name: str = "wrn-10-2"
    """A network of `saligraft list networks`."""
    options: dict[str, Any] = {}
    """Options of the network, such as dropout and drop_block of a Wide ResNet."""

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        untrained = {"pretrained": False} if self.options.get("pretrained") else {}  # checking must not download
        try:
            with torch.device("meta"):  # shapes without memory: a mistake shows before any data is loaded
                network = build_network(self.name, num_classes=2, **self.options | untrained)
        except (TypeError, RuntimeError, ArithmeticError) as error:  # torch's and others' words for numbers too large
            raise ValueError(str(error)) from error
        parameters = sum(parameter.numel() for parameter in network.parameters())
        if parameters > MOST_PARAMETERS:
            raise ValueError(f"{self.name} must have at most {MOST_PARAMETERS:,} parameters, got {parameters:,}")
        return self

    @field_validator("options")
    @classmethod
    def _sizes(cls, options: dict[str, Any]) -> dict[str, Any]:
        for name, value in options.items():
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, int | float):
                    not_absurd(name, number, most=10_000)
        return options


class OptimizerSection(Section):
    """[optimizer]: how weights move."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD, Adam with L2 regularisation, or Adam with decoupled weight decay."""
    lr: Positive = 0.1
    """Learning rate, which the schedule multiplies."""
    head_lr: Positive | None = None
    """Learning rate of the last fully-connected layer, if another, as where the rest comes pretrained."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov's momentum, for SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two running means."""
    weight_decay: NotNegative = 5e-4
    """Weight decay."""
    decay_norm_and_bias: bool = True
    """Also decay the parameters of normalisation layers and all biases."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise ValueError("nesterov needs name 'sgd' and momentum > 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        return self


class ScheduleSection(Section, ABC):
    """[schedule]: how the learning rate changes; `name` decides which other keys are valid."""

    warmup_epochs: NotNegative = 0.0
    """Epochs over which the learning rate first rises linearly."""
    warmup_start: Fraction = 0.1
    """Factor of the learning rate that the rise starts from."""

    def factor(self, epoch: float, epochs: int) -> float:
        """Factor of the recipe's learning rate after `epoch` of `epochs`."""
        rise = shapes.warm_up(epoch, length=self.warmup_epochs, start=self.warmup_start)
        return rise * self.shape(epoch, epochs)

    @abstractmethod
    def shape(self, epoch: float, epochs: int) -> float:
        """The same without the rise at the start."""


class ConstantSchedule(ScheduleSection):
    """One learning rate throughout."""

    name: Literal["constant"]
    """Which schedule."""

    def shape(self, epoch: float, epochs: int) -> float:
        return shapes.constant(epoch, epochs)


class StepSchedule(ScheduleSection):
    """The learning rate falls by a factor at given epochs."""

    name: Literal["step"]
    """Which schedule."""
    milestones: tuple[Positive, ...]
    """Epochs at which the learning rate falls."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Factor at each of them."""

    def shape(self, epoch: float, epochs: int) -> float:
        return shapes.step(epoch, epochs, milestones=self.milestones, decay=self.decay)


class CosineSchedule(ScheduleSection):
    """The learning rate falls along half a cosine."""

    name: Literal["cosine"] = "cosine"
    """Which schedule."""
    final: Fraction = 0.0
    """Factor at the end of the run."""

    def shape(self, epoch: float, epochs: int) -> float:
        return shapes.cosine(epoch, epochs, final=self.final)


class PiecewiseLinearSchedule(ScheduleSection):
    """The learning rate runs in straight lines from point to point, and stays at the last."""

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

    def shape(self, epoch: float, epochs: int) -> float:
        return shapes.piecewise_linear(epoch, epochs, knots=self.epochs, factors=self.factors)


class OneCycleSchedule(ScheduleSection):
    """The learning rate rises to its peak and falls again, once."""

    name: Literal["one-cycle"]
    """Which schedule."""
    start: Fraction = 0.04
    """Factor at the start of the run."""
    peak: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Fraction of the run at which the factor is 1."""
    final: Fraction = 0.0
    """Factor at the end of the run."""

    def shape(self, epoch: float, epochs: int) -> float:
        return shapes.one_cycle(epoch, epochs, start=self.start, peak=self.peak, final=self.final)


SCHEDULES: dict[str, type[ScheduleSection]] = {
    "constant": ConstantSchedule,
    "step": StepSchedule,
    "cosine": CosineSchedule,
    "one-cycle": OneCycleSchedule,
    "piecewise-linear": PiecewiseLinearSchedule,
}


def complete_options(options: dict[str, Any], defaults: dict[str, Any], owner: str) -> None:
    """Write every option out, `...` in `defaults` marking one that has none; arrays become tuples."""
    for name in options:
        if name not in defaults:
            raise ValueError(f"{owner} has no option {name!r}; valid: {', '.join(defaults) or '(none)'}")
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    complete = {name: given.get(name, default) for name, default in defaults.items()}
    options.clear()
    options.update({name: value for name, value in complete.items() if value is not ...})
