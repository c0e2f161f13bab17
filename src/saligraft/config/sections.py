"""Sections of a recipe: typed, each field with a description, unknown keys refused.

A section is validated in two stages: keys, types and method names, which need no torch, then `check`, which builds what
the section describes. `make_recipe` runs the first stage for all sections first, so that a typo fails before the slow
import of torch. For the same reason, the modules of this package import torch inside functions.

[method] is in `method_section.py`, [training] in `training_section.py`, [schedule] in `schedule.py`.
"""

import importlib
import inspect
import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from saligraft.import_path import check_arguments, import_object, install_command, is_given, is_import_path
from saligraft.names import did_you_mean, network_form, one_line, resolve, utf8

if TYPE_CHECKING:
    import torch

# Upper bounds are far above any use, and below values that overflow, run forever or exhaust the memory.
Count = Annotated[int, Field(ge=1, le=10**6)]
CountOrZero = Annotated[int, Field(ge=0, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
MOST_PARAMETERS = 10**10
NAMES_ONLY = "names only"  # validation context of the first stage
CLASSIC = ("sgd", "adam", "adamw")  # optimisers with settings of their own: momentum, nesterov, betas


class RecipeSection(BaseModel):
    """Base of all sections: typed without coercion, read-only; a wrong key's message lists the valid ones."""

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
                raise ValueError(f"unknown key {name!r}; valid: {', '.join(cls.model_fields)}{cls._hint(name)}")
            if isinstance(table[name], str):
                utf8(name, table[name])
        return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}

    @model_validator(mode="after")
    def _checked(self, info: ValidationInfo) -> Self:
        return self if info.context == NAMES_ONLY else self.check()

    def check(self) -> Self:
        """Check what keys and types cannot express, and fill in options; return the section."""
        return self

    @classmethod
    def _hint(cls, name: str) -> str:
        """Point to a similar key, or to where sections have this one."""
        paths = defaultdict(list)
        for section, field in cls.model_fields.items():
            kind = section_class(field)
            for key in () if kind is None else kind.model_fields:
                paths[key].append(f"{section}.{key}")
        return f"; did you mean {' or '.join(paths[name])}?" if name in paths else did_you_mean(name, cls.model_fields)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Append the fields' descriptions to the docstring, so that help() shows them."""
        fields = {
            name: field.description or inspect.getdoc(section_class(field)) for name, field in cls.model_fields.items()
        }
        lines = (f"    {name}: {(description or '').splitlines()[0]}" for name, description in fields.items())
        cls.__doc__ = "\n".join([inspect.getdoc(cls) or "", "", "Args:", *lines])


def section_class(field: FieldInfo) -> type[RecipeSection] | None:
    """Return the class of a field that is a section, for a choice of classes that of the default; else None.

    Args:
        field: Field of a section.
    """
    kind = type(field.default) if isinstance(field.default, RecipeSection) else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, RecipeSection) else None


class DataSection(RecipeSection):
    """[data]: what to train and test on."""

    name: str = "shapes"
    """A data set of `saligraft list data`; "folder:PATH" for files PATH/cats/1.jpg and so on; "package.module:Name"."""
    root: str | None = None
    """Folder of the data set's files; `shapes` needs none."""
    options: dict[str, Any] = {}
    """Options of the data set, such as size and per_class of `shapes`; the others keep their defaults."""
    pad: CountOrZero = 4
    """Pixels of padding on each side for the random crop of images in memory."""
    flip: bool = True
    """Flip training images at random."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Loader processes per training process, for data that are not held in memory; 0: none."""
    keep_last: bool = False
    """Also train on the last, smaller batch of an epoch, as CutMix's and PuzzleMix's authors do."""
    classes: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """Train and test on this many classes, the first ones. All, if left out."""
    per_class_subset: Count | None = None
    """Training images per class, drawn by subset_seed; larger subsets contain smaller ones. All, if left out."""
    test_subset: Count | None = None
    """Test images per class, drawn by subset_seed. All, if left out."""
    held_out: bool = False
    """Test on training images outside per_class_subset instead, to choose settings without seeing the test images."""
    subset_seed: Seed = 0
    """Seed of the subsets, independent of the run's seed."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not is_given(name) and not is_import_path(name):
            resolve(name)
        return name

    def check(self) -> Self:
        from saligraft import data as datasets

        if self.held_out and self.per_class_subset is None:
            raise ValueError("held_out needs per_class_subset: without it, all training images are trained on")
        if is_given(self.name):
            return self
        if is_import_path(self.name):
            check_arguments(self.name, "data set", self.options)
            return self
        name, _ = resolve(self.name, self.root)
        accepted = inspect.signature(datasets.DATASETS[name]).parameters.values()
        options = [p for p in accepted if p.name not in ("split", "root")]
        defaults = {p.name: ... if p.default is p.empty else p.default for p in options}
        complete_options(self.options, defaults, f"data set {self.name}")
        return self


@cache  # the hundreds of recipes of all experiments have a dozen networks
def _count_parameters(network: str, options: str) -> int:
    """Build a network without memory, so that errors appear before any data is loaded."""
    import torch

    from saligraft.networks import build_network

    arguments = json.loads(options)
    untrained = {"pretrained": False} if arguments.get("pretrained") else {}  # validation must not download
    with torch.device("meta"):
        built = build_network(network, num_classes=2, **arguments | untrained)
    return sum(parameter.numel() for parameter in built.parameters())


class NetworkSection(RecipeSection):
    """[network]: what to train."""

    name: str = "wrn-10-2"
    """A network of `saligraft list networks`, or "package.module:Name", your own."""
    options: dict[str, Any] = {}
    """Options of the network, such as dropout and drop_block of a Wide ResNet."""
    weights: str | None = None
    """Initial weights: run folder, safetensors or state dict of torch; a head for other classes is re-initialised."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if not is_given(name) and not is_import_path(name):
            network_form(name)
        return name

    def check(self) -> Self:
        from saligraft.checks import not_absurd

        for name, value in self.options.items():
            if name in ("num_classes", "in_channels"):
                raise ValueError(f"options must not set {name!r}, which comes from the data, got {value!r}")
            for number in value if isinstance(value, list | tuple) else [value]:
                if isinstance(number, int | float):
                    not_absurd(name, number, most=10_000)
        if is_given(self.name):
            return self
        if is_import_path(self.name):  # your own code need not run without memory
            check_arguments(self.name, "network", {"num_classes": 2, **self.options})
            return self
        try:
            options = json.dumps(self.options)
        except TypeError as error:
            raise ValueError(f"options must be values of a TOML file, got {self.options}") from error
        try:
            parameters = _count_parameters(self.name, options)
        except (TypeError, RuntimeError, ArithmeticError) as error:  # for numbers that are too large
            raise ValueError(str(error)) from error
        if parameters > MOST_PARAMETERS:
            raise ValueError(f"{self.name} must have at most {MOST_PARAMETERS:,} parameters, got {parameters:,}")
        return self


class OptimizerSection(RecipeSection):
    """[optimizer]: how weights are updated."""

    name: str = "sgd"
    """SGD ("sgd"), "adam", "adamw", any class of torch.optim ("RAdam"), "timm:NAME" or "package.module:Name"."""
    options: dict[str, Any] = {}
    """Further keyword arguments of the optimiser, such as eps."""
    lr: Positive = 0.1
    """Learning rate, which the schedule multiplies."""
    head_lr: Positive | None = None
    """Learning rate of the last fully-connected layer, if different, for a pretrained network."""
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

    def check(self) -> Self:
        if self.name not in CLASSIC:
            for setting in ("momentum", "nesterov", "betas"):
                if getattr(self, setting) != type(self).model_fields[setting].default:
                    raise ValueError(f"{setting} is for {', '.join(CLASSIC)}: set options.{setting} of {self.name}")
        if self.nesterov and (self.name != "sgd" or self.momentum == 0):
            raise ValueError("nesterov needs name 'sgd' and momentum > 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {list(self.betas)}")
        if self.name not in CLASSIC or self.options:  # the others cannot fail, and building one imports torch._dynamo
            import torch

            self.build([{"params": [torch.zeros(2, 2, requires_grad=True)]}])  # errors appear before any data is loaded
        return self

    def build(self, groups: list[dict[str, Any]]) -> "torch.optim.Optimizer":
        """Build the optimiser.

        Args:
            groups: Parameter groups, with their own learning rate and weight decay.
        """
        import torch

        owner, options = f"optimizer {self.name}", {name: _as_tuple(value) for name, value in self.options.items()}
        make, arguments = _optimizer(self.name)
        if self.name == "sgd":
            arguments |= {"momentum": self.momentum, "nesterov": self.nesterov}
        elif self.name in CLASSIC:
            arguments |= {"betas": self.betas}
        try:
            optimizer: torch.optim.Optimizer = make(groups, lr=self.lr, **arguments, **options)
        except Exception as error:  # torch and others raise many types where an option does not suit
            reason = one_line(error)
            raise ValueError(f"{owner} cannot be built: {reason}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"{owner} must build a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if self.weight_decay and "weight_decay" not in optimizer.defaults:
            raise ValueError(f"weight_decay must be 0 for {owner}, which has none, got {self.weight_decay}")
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise ValueError(f"{owner} cannot be used: it evaluates the loss several times per step")
        return optimizer


def _optimizer(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The class or function that builds an optimiser, and arguments that its source asks for."""
    import torch

    classes = {
        kind.__name__: kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    classes |= {name: classes[torch_name] for name, torch_name in zip(CLASSIC, ("SGD", "Adam", "AdamW"), strict=True)}
    if name in classes:
        return classes[name], {}
    if name.startswith("timm:"):
        try:
            optim = importlib.import_module("timm.optim")
        except ModuleNotFoundError as error:
            raise ValueError(f"optimizer {name} needs timm: {install_command('timm')}") from error
        return optim.create_optimizer_v2, {"opt": name.removeprefix("timm:")}
    if is_import_path(name):
        return import_object(name, "optimizer"), {}
    valid = (*sorted(classes), "timm:NAME")
    raise ValueError(f"unknown optimizer {name!r}; valid: {', '.join(valid)}{did_you_mean(name, valid)}")


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def complete_options(options: dict[str, Any], defaults: dict[str, Any], owner: str) -> None:
    """Fill in the defaults of all options, in place; arrays become tuples.

    Args:
        options: Options as the user wrote them.
        defaults: Default of every valid option; `...` marks one without a default.
        owner: Named in the message about an invalid option.
    """
    for name in options:
        if name not in defaults:
            valid = ", ".join(defaults) or "(none)"
            raise ValueError(f"{owner} has no option {name!r}; valid: {valid}{did_you_mean(name, defaults)}")
    chosen = {name: _as_tuple(value) for name, value in options.items()}
    complete = {name: chosen.get(name, default) for name, default in defaults.items()}
    options.clear()
    options.update({name: value for name, value in complete.items() if value is not ...})
