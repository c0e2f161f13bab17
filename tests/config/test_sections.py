"""Sections: defaults, meanings, and what they refuse."""

from typing import Any

import pytest
from pydantic import ValidationError

from saligraft.config import method_section, schedule, sections
from saligraft.config.recipe import Recipe
from saligraft.config.training_section import Phase, TrainingSection

ALL_SECTIONS = [
    Recipe,
    sections.DataSection,
    sections.NetworkSection,
    method_section.MethodSection,
    method_section.SaliencySection,
    TrainingSection,
    Phase,
    sections.OptimizerSection,
    *schedule.SCHEDULES.values(),
]


@pytest.mark.parametrize("section", ALL_SECTIONS, ids=lambda section: section.__name__)
def test_every_field_says_what_it_means(section: type[sections.RecipeSection]) -> None:
    for name, field in section.model_fields.items():
        is_section = section is Recipe and name in ("data", "network", "method", "training", "optimizer", "schedule")
        assert is_section or field.description, name
        assert f"\n    {name}: " in (section.__doc__ or "").partition("Args:")[2]


def test_data_options_are_completed_with_the_data_set_s_defaults() -> None:
    assert sections.DataSection(options={"per_class": 7}).options == {"size": 32, "per_class": 7, "seed": 0}


def test_a_folder_takes_its_path_in_the_name_and_has_options_of_its_own() -> None:
    options = sections.DataSection(name="folder:my pets", options={"size": 64}).options
    assert (options["size"], options["test_share"]) == (64, 0.2)


def test_arrays_become_tuples() -> None:
    assert schedule.StepSchedule(name="step", milestones=[1, 2]).milestones == (1, 2)


@pytest.mark.parametrize(
    ("section", "table", "message"),
    [
        (sections.DataSection, {"nmae": "shapes"}, "unknown key 'nmae'; valid: name, root, options, pad, flip"),
        (sections.DataSection, {"name": "shape"}, "data set must be one of 'shapes', .*; got 'shape'"),
        (sections.DataSection, {"name": "folder:a", "root": "b"}, "root must be None for folder:a"),
        (sections.DataSection, {"per_class_subset": 0}, "greater than or equal to 1"),
        (
            sections.DataSection,
            {"options": {"sise": 3}},
            "data set shapes has no option 'sise'; valid: size, per_class",
        ),
        (sections.OptimizerSection, {"lr": 0}, "greater than 0"),
        (sections.OptimizerSection, {"lr": float("nan")}, "finite"),
        (sections.OptimizerSection, {"name": "adam", "nesterov": True}, "nesterov needs name 'sgd'"),
        (sections.OptimizerSection, {"betas": [0.9, 1.0]}, r"betas must lie in \[0, 1\), got \[0.9, 1.0\]"),
        (schedule.StepSchedule, {"name": "step"}, "milestones"),
        (schedule.OneCycleSchedule, {"name": "one-cycle", "peak": 1.0}, "less than 1"),
        (sections.OptimizerSection, {"head_lr": 0.0}, "greater than 0"),
        (
            schedule.PiecewiseLinearSchedule,
            {"name": "piecewise-linear", "epochs": [0, 5], "factors": [1]},
            "equally many and at least one, got 2 epochs and 1 factors",
        ),
        (
            schedule.PiecewiseLinearSchedule,
            {"name": "piecewise-linear", "epochs": [0, 5, 4], "factors": [1, 2, 3]},
            r"epochs must ascend, got \[0.0, 5.0, 4.0\]",
        ),
    ],
)
def test_bad_settings_are_refused(section: type[sections.RecipeSection], table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        section(**table)


def test_schedules_are_named_as_they_are_looked_up() -> None:
    required = {"step": {"milestones": [5]}, "piecewise-linear": {"epochs": [0, 4], "factors": [1, 3]}}
    for name, kind in schedule.SCHEDULES.items():
        section = kind(name=name, warmup_epochs=2, warmup_start=0.5, **required.get(name, {}))
        assert section.factor(1.0, 10) == pytest.approx(0.75 * section.shape(1.0, 10))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "wrn-11-2"}, r"depth must be 6n \+ 4"),
        ({"name": "wrn-10-1", "options": {"width": 3}}, "wrn-10-1 has no option 'width'; valid: stem_stride"),
        ({"name": "torchvision:resnet18", "options": {"nothing": 1}}, "nothing"),
    ],
)
def test_a_network_that_cannot_be_built_is_refused_before_any_data_is_loaded(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        sections.NetworkSection(**table)
