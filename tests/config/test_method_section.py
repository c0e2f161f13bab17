"""[method]: one method, several, or a choice; complete, writable as TOML, and refused where nothing can train it."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from saligraft.config.method_section import METHOD_NAMES, MethodSection
from saligraft.config.saliency_section import Normalization
from saligraft.methods import (
    REGISTRY,
    AttentiveCutMix,
    AugMix,
    Compose,
    Cutout,
    ManifoldMixup,
    MethodChoice,
    Mixup,
    PuzzleMix,
    RandomChoice,
    SaliencyGrafting,
    SaliencyMix,
)
from saligraft.training import dump_recipe, load_recipe, make_recipe

DATA = Normalization(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
SECTIONS: list[dict[str, Any]] = [
    *({"name": name} for name in METHOD_NAMES),
    {"name": ["cutout", "mixup"], "options": {"cutout": {"size": 8}}},
    {"name": "cutout+manifold-mixup", "options": {"manifold-mixup": {"layers": ["input", "stages.0"]}}},
    {"name": "random-choice", "choices": {"mixup": 0.3, "cutmix": 0.7}, "options": {"per": "sample"}},
    {"name": "random-choice", "choices": {"cutout+saliencymix": 1.0}},
    {"name": "random-choice", "choices": {"none": 0.2, "cutmix": 0.8}, "options": {"per": "sample"}},
    {"name": "random-choice", "choices": {"none": 0.2, "cutout+manifold-mixup": 0.3, "augmix": 0.5}},
    {"name": "attentive-cutmix", "options": {"grid": "none"}},
    {"name": "puzzlemix", "options": {"transport_cost": None, "transport_grid": 8, "pixel_std": [0.2, 0.2, 0.3]}},
    {"name": "saliency-grafting", "saliency": {"name": "cam", "options": {"negative": "absolute"}}},
    {"name": "saliency-grafting", "saliency": {"layer": "stages.1"}},
    {"name": "attentive-cutmix", "saliency": {"layer": "stages.1", "options": {"mode": "current"}}},
]


@pytest.mark.parametrize("table", SECTIONS, ids=str)
def test_every_section_reads_back_from_toml_as_it_was(table: dict[str, Any], tmp_path: Path) -> None:
    recipe = make_recipe({"method": table})
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.toml")
    assert again == recipe
    assert again.method.build(DATA) == recipe.method.build(DATA)


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_gets_all_its_options_written_out(name: str) -> None:
    section, method = MethodSection(name=name), REGISTRY[name].method()
    assert section.build() == [method]
    of_the_data = {"mean", "std", "normalized", "pixel_std"}
    expected = {field.name for field in fields(method) if getattr(method, field.name) is not None} - of_the_data
    assert section.options == {option: getattr(method, option) for option in expected}


def test_plain_training_has_no_method() -> None:
    assert MethodSection().build() == []
    assert MethodSection().parts == ()


def test_arrays_become_tuples() -> None:
    assert MethodSection(name="saliency-grafting", options={"grids": [2, 4]}).build()[0].grids == (2, 4)


def test_a_list_and_a_joined_name_are_one_composition() -> None:
    options = {"cutout": {"size": 8}, "mixup": {"alpha": 0.2}}
    listed = MethodSection(name=["cutout", "mixup"], options=options)
    assert listed == MethodSection(name="cutout+mixup", options=options)
    assert listed.build() == [Cutout(size=8), Mixup(alpha=0.2)]
    assert options == {"cutout": {"size": 8}, "mixup": {"alpha": 0.2}}  # the caller's table is unchanged


def test_a_random_choice_holds_its_methods_with_their_options() -> None:
    section = MethodSection(
        name="random-choice",
        choices={"saliency-grafting": 0.25, "cutout+mixup": 0.75},
        options={"per": "sample", "probability": 0.5, "cutout+mixup": {"mixup": {"alpha": 0.2}}},
    )
    mixers = [SaliencyGrafting(), Compose([Cutout(), Mixup(alpha=0.2)])]
    assert section.build() == [RandomChoice(mixers, probabilities=(0.25, 0.75), per="sample", probability=0.5)]
    assert section.parts == ("saliency-grafting", "cutout", "mixup")


def test_a_random_choice_among_all_kinds_is_one_of_steps() -> None:
    choices = {"none": 0.1, "cutout+manifold-mixup": 0.2, "augmix": 0.3, "saliency-grafting": 0.4}
    section = MethodSection(name="random-choice", choices=choices, options={"probability": 0.5})
    augmix = AugMix(mean=DATA.mean, std=DATA.std, normalized=True)
    members = [None, [Cutout(), ManifoldMixup()], augmix, SaliencyGrafting()]
    probabilities = tuple(choices.values())
    assert section.build(DATA) == [MethodChoice(members, probabilities=probabilities, probability=0.5)]
    assert section.with_originals
    assert section.saliency.name == "feature-map"
    noisy = {"name": "random-choice", "choices": {"puzzlemix": 1.0}}
    assert isinstance(MethodSection(**noisy).build()[0], RandomChoice)
    options = {"puzzlemix": {"adversarial_probability": 0.1}}
    assert isinstance(MethodSection(**noisy, options=options).build()[0], MethodChoice)


def test_a_choice_may_leave_samples_as_they_are() -> None:
    section = MethodSection(name="random-choice", choices={"none": 0.5, "mixup": 0.5}, options={"per": "sample"})
    assert section.build() == [RandomChoice([None, Mixup()], probabilities=(0.5, 0.5), per="sample")]


def test_methods_that_differ_in_their_source_take_the_one_named() -> None:
    choices = {"puzzlemix": 0.5, "saliency-grafting": 0.5}
    assert MethodSection(name="random-choice", choices=choices, saliency={"name": "cam"}).saliency.name == "cam"
    # A method whose maps are optional is ignored where another needs them.
    one = MethodSection(name="random-choice", choices={"saliencymix": 0.5, "attentive-cutmix": 0.5})
    assert one.saliency.name == "feature-map"


def test_none_is_written_as_a_word_where_it_is_not_the_default() -> None:
    for value in (None, "none"):
        section = MethodSection(name="attentive-cutmix", options={"grid": value})
        assert section.options["grid"] == "none"
        assert section.build() == [AttentiveCutMix(grid=None)]
    section = MethodSection(name="manifold-mixup", options={"layers": "none"})
    assert "layers" not in section.options
    assert section.build() == [ManifoldMixup()]


def test_the_data_s_statistics_reach_the_methods_that_need_them() -> None:
    augmix = MethodSection(name="augmix").build(DATA)[0]
    assert (augmix.mean, augmix.std, augmix.normalized) == (DATA.mean, DATA.std, True)
    assert MethodSection(name="puzzlemix").build(DATA) == [PuzzleMix(pixel_mean=DATA.mean, pixel_std=DATA.std)]
    assert MethodSection(name="puzzlemix", options={"pixel_std": 0.5}).build(DATA)[0].pixel_std == 0.5
    assert MethodSection(name="saliencymix").build(DATA) == [SaliencyMix(pixel_mean=DATA.mean, pixel_std=DATA.std)]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("none", None),
        ("mixup", None),
        ("cutout+manifold-mixup", None),
        ("saliency-grafting", "feature-map"),
        ("puzzlemix", "input-gradient"),
        ("cutout+saliencymix", "fine-grained"),
    ],
)
def test_maps_come_from_the_authors_source_by_default(name: str, source: str | None) -> None:
    assert MethodSection(name=name).saliency.name == source


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "cutmx"}, "unknown method 'cutmx'; valid: none, .*cutmix, .*augmix, random-choice"),
        ({"name": ["cutout", "none"]}, "unknown method 'none'"),
        ({"name": []}, "valid string"),
        ({"name": "mixup", "options": {"T": 1}}, "method mixup has no option 'T'; valid: .*alpha"),
        ({"options": {"alpha": 1}}, r"method none has no option 'alpha'; valid: \(none\)"),
        ({"name": "mixup", "options": {"alpha": -1}}, "alpha must be"),
        ({"name": "mixup", "options": {"alpha": "a"}}, "alpha must be a number, got str"),
        ({"name": "augmix", "options": {"mean": [0.5]}}, "method augmix has no option 'mean'"),
        ({"name": "mixup+cutout"}, "image transforms such as Cutout.*, got Mixup"),
        ({"name": "cutout+augmix"}, "AugMix must be used alone"),
        ({"name": "cutout+cutout"}, "each method once"),
        ({"name": "cutout+mixup", "options": {"alpha": 1}}, r"has no option 'alpha'; valid: cutout, mixup"),
        ({"name": "cutout+mixup", "options": {"mixup": 1}}, r"options.mixup must be a table of options, got 1"),
        ({"name": "random-choice"}, "choices must name the methods"),
        ({"name": "mixup", "choices": {"mixup": 1.0}}, "choices must be left out for method mixup"),
        ({"name": "random-choice", "choices": {"mixup": 0.5}}, "probabilities must sum to 1, got 0.5"),
        ({"name": "random-choice", "choices": {"mixup": 0}}, "greater than 0"),
        ({"name": "random-choice", "choices": {"cutout+augmix": 1}}, "AugMix must be used alone, got Cutout"),
        (
            {"name": "random-choice", "choices": {"augmix": 0.5, "mixup": 0.5}, "options": {"per": "sample"}},
            "per must be 'batch' in a choice among all kinds",
        ),
        (
            {"name": "random-choice", "choices": {"puzzlemix": 0.5, "saliency-grafting": 0.5}},
            r"saliency.name must be given .* differ \(input-gradient, feature-map\); valid: feature-map, cam",
        ),
        (
            {"name": "random-choice", "choices": {"puzzlemix": 0.3, "manifold-mixup": 0.3, "attentive-cutmix": 0.4}},
            "saliency.name must be given",
        ),
        ({"name": "mixup", "saliency": {"name": "cam"}}, "saliency must be left out for method mixup"),
        ({"name": "mixup", "saliency": {"options": {"mode": "eval"}}}, "saliency must be left out for method mixup"),
        ({"name": "saliency-grafting", "saliency": {"name": "cma"}}, "unknown saliency source 'cma'; valid: feature-m"),
        ({"name": "attentive-cutmix", "saliency": {"options": {"x": 1}}}, "feature-map has no option 'x'; valid: mod"),
        (
            {"name": "saliency-grafting", "saliency": {"options": {"mode": "eval"}}},
            "feature-map in the training pass has no option 'mode'",
        ),
        ({"name": "puzzlemix", "saliency": {"layer": "stem"}}, "reads no layer, got 'stem'"),
    ],
)
def test_what_nothing_can_train_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MethodSection(**table)
