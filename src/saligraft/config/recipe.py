"""A recipe: everything that determines a run's numbers, validated when it is created.

Written as TOML; `recipe_file.py` reads and writes it.
"""

import re
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, ValidationError

from saligraft.config.method_section import ANY_DATA, NONE, MethodSection
from saligraft.config.recipe_file import toml_value
from saligraft.config.schedule import CosineSchedule, Schedule
from saligraft.config.sections import NAMES_ONLY, DataSection, NetworkSection, OptimizerSection, RecipeSection, Seed
from saligraft.config.training_section import TrainingSection
from saligraft.names import METHODS, PassPlan, did_you_mean

if TYPE_CHECKING:
    from saligraft.saliency.base import Passes

EVAL = ("mode", "eval")  # the default of sources that make a pass of their own


class Recipe(RecipeSection):
    """One training run. Equal recipes give equal numbers on the same machine and thread count.

    Example:
        >>> Recipe(seed=1, training={"epochs": 3}).training.epochs
        3
    """

    title: str = ""
    """Title of the run, for its report."""
    paper: str = ""
    """Section or table of the paper that the run follows."""
    seed: Seed = 0
    """Seed of the initial weights, the order of the images and every random draw."""
    data: DataSection = Field(default_factory=DataSection)
    network: NetworkSection = Field(default_factory=NetworkSection)
    method: MethodSection = Field(default_factory=MethodSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    schedule: Schedule = CosineSchedule()

    @property
    def heading(self) -> str:
        """The title, or data set, network and method if there is none, as after an override of one of them."""
        titles = {name: title for methods in METHODS.values() for name, (_, title, _) in methods.items()}
        method = titles.get(self.method.name, self.method.name)
        return self.title or f"{self.data.name}, {self.network.name}, {method.replace(NONE, 'plain training')}"

    @property
    def without_root(self) -> Self:
        """The recipe without the folder of its data, which may be moved between a run's start and its end."""
        return self.model_copy(update={"data": self.data.model_copy(update={"root": None})})

    @property
    def never_mixes(self) -> bool:
        """Whether the warm-up takes the entire run, so that its method is never applied."""
        return bool(self.method.parts) and self.training.warmup_epochs >= self.training.epochs

    @property
    def passes(self) -> PassPlan | None:
        """What a step trains on, by training.passes or training.originals; None for what the method's authors do."""
        training, own = self.training, self.method.with_originals
        if training.passes is not None or training.originals in (None, own):
            return training.passes
        return "both" if training.originals else "mixed"

    @property
    def with_originals(self) -> bool:
        """Whether the originals are trained on too, beside one or more copies of mixed images."""
        from saligraft.step import WITH_ORIGINALS

        return self.method.with_originals if self.passes is None else self.passes in WITH_ORIGINALS

    @property
    def weighs_losses(self) -> bool:
        """Whether a step may train on several batches: originals and copies, or several copies."""
        return self.method.with_originals or self.passes is not None

    @property
    def loss_weights(self) -> tuple[float, ...]:
        """Of the originals, if they are trained on, and of each copy."""
        weights = self.training.loss_weights or (1.0,) * self._batches
        total = 1.0 if self.training.loss_combination == "sum" else sum(weights)
        return tuple(weight / total for weight in weights)

    @property
    def passes_per_step(self) -> "Passes | None":
        """Forward and backward passes of a step once the network is warm; None where that is not known."""
        from saligraft.methods import REGISTRY, FeatureMixer, MethodChoice, StepStrategy
        from saligraft.saliency.base import Passes, SaliencySource
        from saligraft.saliency.sources import SALIENCY_SOURCES

        methods = self.method.build(ANY_DATA)
        if methods and isinstance(methods[-1], MethodChoice):
            return None
        if not methods or self.passes == "remembered":
            return Passes(1, 1)
        if isinstance(methods[-1], FeatureMixer | StepStrategy):
            own = self.method.parts[-1]
            return REGISTRY[own].passes if own in REGISTRY else None
        source = SALIENCY_SOURCES.get(self.method.saliency.name or "", SaliencySource)
        shared = self._maps_from_originals and self.method.saliency.network is None
        maps = source.shared if shared else source.alone
        return Passes(self._batches + maps.forward, self._batches + maps.backward)

    @property
    def _maps_from_originals(self) -> bool:
        """Whether the training pass of the originals gives their maps too."""
        return self.with_originals and self.passes != "joint"

    @property
    def _batches(self) -> int:
        return self.training.copies + self.with_originals

    def check(self) -> Self:
        self._check_passes()
        self._check_losses()
        self._check_training()
        return self

    def _check_passes(self) -> None:
        from saligraft.methods import BatchMixer
        from saligraft.remembering import check_remembered
        from saligraft.steps import resolve_step

        training, passes = self.training, self.passes
        setting = "passes" if training.passes is not None else "originals"
        if training.originals is not None and training.originals != self.with_originals:
            raise ValueError(
                f"training.originals must be left out for training.passes {passes!r}, got {training.originals}"
            )
        if passes is not None:
            step, arguments = resolve_step(self.method.build(ANY_DATA))
            method = arguments.get("method")
            if not isinstance(method, BatchMixer) or method.makes_noise:
                noise = " with an adversarial_probability above 0" if isinstance(method, BatchMixer) else ""
                raise ValueError(
                    f"training.{setting} must be left out for method {self.method.name!r}{noise}, which is trained by "
                    f"{step.__name__}"
                )
            if passes == "remembered":
                check_remembered(method, training.copies)
                if self.method.saliency.name != "feature-map" or self.method.saliency.network is not None:
                    raise ValueError(
                        "method.saliency.name must be 'feature-map' for training.passes 'remembered', without a "
                        f"network of its own, got {self.method.saliency.name!r}"
                    )
        source = self.method.saliency
        if self._maps_from_originals and not self.method.with_originals and source.name is not None:
            # The map now comes from the training pass, and in its mode.
            options = {option: value for option, value in source.options.items() if (option, value) != EVAL}
            section = source.model_copy(update={"options": options}).complete(source.name, in_training_pass=True)
            object.__setattr__(self, "method", self.method.model_copy(update={"saliency": section}))

    def _check_losses(self) -> None:
        training, weights = self.training, self.training.loss_weights
        for setting, default in (("copies", 1), ("loss_weights", None), ("loss_combination", None)):
            value = getattr(training, setting)
            if value != default and not self.weighs_losses:
                raise ValueError(
                    f"training.{setting} must be {default or 'left out'} for method {self.method.name!r}, which trains "
                    f"on mixed images alone unless training.originals is true, got {value!r}"
                )
        if weights is not None and len(weights) != self._batches:
            parts = "originals, copies" if self.with_originals else "copies"
            raise ValueError(f"training.loss_weights must have {self._batches} entries ({parts}), got {len(weights)}")
        if weights is not None and not sum(weights):
            raise ValueError(f"training.loss_weights must not all be 0, got {list(weights)}")

    def _check_training(self) -> None:
        from saligraft.methods import FeatureMixer
        from saligraft.methods.registry import methods_of

        training = self.training
        if training.warmup_epochs > training.epochs:
            raise ValueError(
                f"training.warmup_epochs must be <= training.epochs ({training.epochs}), got {training.warmup_epochs}"
            )
        if self.data.keep_last and training.accumulate > 1:
            raise ValueError(
                f"data.keep_last must be false where training.accumulate is above 1, got {training.accumulate}: a part "
                "of another size would weigh as much as the others"
            )
        hooked = [name for name in self.method.parts if name in methods_of(FeatureMixer)]
        if training.compile and hooked:
            raise ValueError(
                f"training.compile must be false for method {hooked[0]!r}, which mixes between layers by hooks that "
                "compiled code does not run"
            )


def make_recipe(table: dict[str, Any], origin: str = "recipe") -> Recipe:
    """Validate a table of sections; errors are one line.

    Args:
        table: Sections by name; absent ones have their defaults.
        origin: Names the table in errors, such as its file.

    Returns:
        The recipe, with every default filled in.

    Example:
        >>> make_recipe({"method": {"name": "cutmix"}}).method.name
        'cutmix'
    """
    sections: dict[str, Any] = {name: {} for name, field in Recipe.model_fields.items() if field.default_factory}
    try:
        Recipe.model_validate({**sections, **table}, context=NAMES_ONLY)  # typos fail before the slow torch import
        return Recipe(**table)
    except ValidationError as error:
        raise ValueError(f"{origin}: {'; '.join(map(_explain, error.errors()))}") from error


def _explain(detail: Any) -> str:
    """Rephrase an error of pydantic: name, expectation and value."""
    # The location contains the chosen schedule as if it were a key: schedule.step.milestones.
    location = list(detail["loc"])
    if location[:1] == ["schedule"] and len(location) > 1:
        del location[1]
    place = ".".join(str(part) for part in location)
    kind, message, value = detail["type"], detail["msg"], detail["input"]
    if kind == "value_error":  # raised by our own checks, whose message is complete
        message = message.removeprefix("Value error, ")
        return f"[{place}] {message}" if place else message
    if kind == "missing":
        return f"{place} is missing"
    if kind == "union_tag_not_found":
        return f"{place}.name is missing"
    if kind == "tuple_type":
        example = f"[{toml_value(value)}]" if isinstance(value, str | int | float) else "[1, 2]"
        return f"{place} must be a list, on the command line --set '{place}={example}', got {value!r}"
    if kind == "union_tag_invalid":
        expected, name = detail["ctx"]["expected_tags"], detail["ctx"]["tag"]
        near = did_you_mean(name, re.findall("'([^']+)'", expected))
        return f"{place}.name must be one of {expected}, got {name!r}{near}"
    message = message.replace("Input should be", "must be")
    return f"{place} {message}, got {value!r}"
