"""A recipe: everything that decides a run's numbers, validated when it is created.

Written as TOML; `recipe_file.py` reads and writes it.
"""

from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from saligraft.config.method_section import MethodSection
from saligraft.config.schedule import (
    ConstantSchedule,
    CosineSchedule,
    OneCycleSchedule,
    PiecewiseLinearSchedule,
    StepSchedule,
)
from saligraft.config.sections import DataSection, NetworkSection, OptimizerSection, RecipeSection, Seed
from saligraft.config.training_section import TrainingSection
from saligraft.methods import FeatureMixer
from saligraft.methods.registry import methods_of


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
    data: DataSection = DataSection()
    network: NetworkSection = NetworkSection()
    method: MethodSection = MethodSection()
    training: TrainingSection = TrainingSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: Annotated[
        ConstantSchedule | StepSchedule | CosineSchedule | OneCycleSchedule | PiecewiseLinearSchedule,
        Field(discriminator="name"),
    ] = CosineSchedule()

    @property
    def never_mixes(self) -> bool:
        """Whether the warm-up takes the entire run, so that its method is never applied."""
        return bool(self.method.parts) and self.training.warmup_epochs >= self.training.epochs

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        training = self.training
        if training.copies > 1 and not self.method.with_originals:
            raise ValueError(
                f"training.copies must be 1 for method {self.method.name!r}, which trains on mixed images alone, "
                f"got {training.copies}"
            )
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
        return self


def make_recipe(table: dict[str, Any], origin: str = "recipe") -> Recipe:
    """Validate a table of sections; errors are one line.

    Args:
        table: Sections by name; absent ones have their defaults.
        origin: Names the table in errors, such as its file.

    Example:
        >>> make_recipe({"method": {"name": "cutmix"}}).method.name
        'cutmix'
    """
    try:
        return Recipe(**table)
    except ValidationError as error:
        raise ValueError(f"{origin}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """Rephrase pydantic's errors as one line: name, expectation and value."""
    return "; ".join(_explain_one(detail) for detail in error.errors())


def _explain_one(detail: Any) -> str:
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
    if kind == "union_tag_invalid":
        return f"{place}.name must be one of {detail['ctx']['expected_tags']}, got {detail['ctx']['tag']!r}"
    message = message.replace("Input should be", "must be")
    return f"{place} {message}, got {value!r}"
