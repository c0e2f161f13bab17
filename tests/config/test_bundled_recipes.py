"""The bundled recipes: each loads, says what it is for, shares its protocol, and trains on files of its set's form."""

import functools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_sets import write_small_sets

from saligraft.config.method_section import BY_NAME
from saligraft.networks import build_network
from saligraft.training import Recipe, Trainer, bundled_recipes, load_recipe, make_recipe
from saligraft.training.accelerator import make_accelerator

NAMES = tuple(bundled_recipes())
TITLES = {name: tomllib.loads(file.read_text(encoding="utf-8"))["title"] for name, file in bundled_recipes().items()}
BASES = tuple(name for name in NAMES if TITLES[name].endswith("plain training"))
# Those of the paper's own size, and not the laptop-sized twins.
FULL = tuple(name for name in NAMES if not any(f"-{net}-" in f"{name}-" for net in ("wrn-10-2", "resnet-10", "20-24")))
LARGE = tuple(
    f"{name}-saliency-grafting"
    for name in (
        "cifar100-pyramidnet-200-240",
        "cifar100-wrn-28-10",
        "tiny-imagenet-resnet-18",
        "imagenet-resnet-50",
        "cub-resnet-50",
    )
)
# What takes the place of a network too large for a quick test.
SMALL = {
    "wrn-28-10": "wrn-10-1",
    "pyramidnet-200-240": "pyramidnet-20-24",
    "resnet-18-small": "resnet-10-small",
    "resnet-50": "resnet-10",
    "resnet-50-loc": "resnet-10-loc",
}

# Made-up files are few.
pytestmark = pytest.mark.filterwarnings("ignore:.* holds .* of the 64,721 clips:UserWarning")

bundled = functools.cache(load_recipe)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield write_small_sets(tmp_path_factory.mktemp("sets"), monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_opens_with_what_a_reader_wants_to_know(name: str) -> None:
    lines = bundled_recipes()[name].read_text(encoding="utf-8").splitlines()
    opening = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    assert any(f"saligraft train {name}" in line for line in opening)
    assert any("Time:" in line for line in opening)
    assert any("Expected" in line for line in opening) or name.startswith("shapes-")
    assert bundled(name).title
    assert bundled(name).paper


def base_of(name: str) -> str:
    """The recipe of the same data, network and protocol, trained plainly."""
    return max((base for base in BASES if f"{name}-".startswith(f"{base}-")), key=len)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BASES])
def test_recipes_of_one_base_differ_in_the_method_alone(name: str) -> None:
    base, other = bundled(base_of(name)).model_dump(), bundled(name).model_dump()
    assert base["network"]["name"] == other["network"]["name"]
    changed = {
        f"{section}.{key}"
        for section in ("data", "network", "training", "optimizer")
        for key in base[section]
        if base[section][key] != other[section][key]
    }
    assert changed <= {"network.options", "training.warmup_epochs", "optimizer.weight_decay"}
    assert base["schedule"] == other["schedule"]
    assert base["seed"] == other["seed"]
    assert other["network"]["options"].keys() - base["network"]["options"].keys() <= {
        "dropout",
        "drop_block",
        "shake_drop",
    }


def test_no_two_recipes_are_one() -> None:
    seen: dict[str, str] = {}
    for name in NAMES:
        content = bundled(name).model_dump_json(exclude={"title", "paper"})
        assert content not in seen, f"{name} and {seen[content]} train the same"
        seen[content] = name
    assert len(set(TITLES.values())) == len(NAMES)


def test_every_method_has_a_bundled_recipe() -> None:
    assert {part for name in NAMES for part in bundled(name).method.parts} == set(BY_NAME)


@pytest.mark.parametrize(
    ("name", "classes", "millions"),
    [  # the heads of the paper's tables
        ("cifar100-pyramidnet-200-240", 100, 26.8),
        ("cifar100-wrn-28-10", 100, 36.5),
        ("tiny-imagenet-resnet-18", 200, 11.3),
        ("imagenet-resnet-50-fast", 1000, 25.6),
        ("imagenet-resnet-50", 1000, 25.6),
        ("speech-commands-wrn-28-10", 12, 36.5),
    ],
)
def test_networks_are_as_large_as_the_paper_says(name: str, classes: int, millions: float) -> None:
    with torch.device("meta"):
        network = build_network(bundled(name).network.name, classes)
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("name", "learning_rates"),
    [  # (epoch, learning rate) of appendix B; of the fast protocol those of PuzzleMix's configurations
        ("cifar100-pyramidnet-200-240", [(0, 0.25), (149.9, 0.25), (150, 0.025), (225, 0.0025), (299.9, 0.0025)]),
        ("cifar100-wrn-28-10", [(0, 0.2), (199.9, 0.2), (200, 0.02), (300, 0.002), (399.9, 0.002)]),
        ("tiny-imagenet-resnet-18", [(0, 0.2), (299.9, 0.2), (300, 0.02), (450, 0.002), (599.9, 0.002)]),
        ("imagenet-resnet-50-fast", [(0, 0.5), (8, 1), (15 - 1e-9, 0.125), (15, 0.2), (40, 0.02), (90, 0.0002)]),
        ("imagenet-resnet-50", [(0, 0.1)]),
        ("cub-resnet-50", [(0, 0.001), (149.9, 0.001), (150, 0.0001), (300, 0.00001)]),
    ],
)
def test_learning_rates_are_the_paper_s(name: str, learning_rates: list[tuple[float, float]]) -> None:
    recipe = bundled(name)
    for epoch, rate in learning_rates:
        assert recipe.optimizer.lr * recipe.schedule.factor(epoch, recipe.training.epochs) == pytest.approx(rate)


@pytest.mark.parametrize("name", [name for name in FULL if "saliency-grafting" in name])
def test_saliency_grafting_is_as_in_appendix_b(name: str) -> None:
    recipe = bundled(name)
    method = recipe.method.build()[0]
    assert method.alpha == 2.0
    assert recipe.training.warmup_epochs == 5
    ablation = "stochastic" in name or "deterministic" in name
    on_imagenet = recipe.data.name == "imagenet"
    assert method.temperature == (0.3 if on_imagenet else 0.2) or ablation
    assert method.grids == ((8,) if ablation else (4, 7, 8) if recipe.data.name in ("imagenet", "cub") else (4, 8))


@pytest.mark.parametrize("name", [name for name in FULL if not name.startswith("speech-commands")])
def test_optimizers_are_those_of_appendices_a_and_b(name: str) -> None:
    recipe = bundled(name)
    epochs = {"pyramidnet-200-240": 300, "tiny": 600, "wrn-28-10": 400, "cifar100-resnet-18": 400, "imagenet-": 100}
    given = next((count for part, count in epochs.items() if part in name), None)
    assert recipe.training.epochs == given or recipe.data.name == "cub"
    assert recipe.optimizer.name == ("adam" if recipe.data.name == "cub" else "sgd")
    assert recipe.optimizer.momentum == 0.9
    assert recipe.optimizer.weight_decay in ((0.0005, 0.0001) if recipe.data.name == "cifar100" else (0.0001,))
    assert recipe.optimizer.decay_norm_and_bias == (recipe.data.name != "imagenet")
    assert recipe.optimizer.head_lr == (0.01 if recipe.data.name == "cub" else None)


@pytest.mark.parametrize("name", [name for name in FULL if name.startswith(("cifar100", "tiny"))])
def test_baselines_are_as_in_appendix_b(name: str) -> None:
    for method, options in zip(bundled(name).method.parts, bundled(name).method.build(), strict=True):
        if method in ("mixup", "cutmix", "saliencymix"):
            assert (options.alpha, options.per) == (1.0, "batch")
            assert options.probability == (1.0 if method == "mixup" else 0.5)
        if method == "manifold-mixup":  # of the authors, but 1 in Table 2
            assert (options.alpha, options.per) == (1.0 if "pyramidnet" in name else 2.0, "batch")
        if method == "puzzlemix":
            assert (options.beta, options.gamma, options.eta, options.transport_cost) == (1.2, 0.5, 0.2, 0.8)


@pytest.mark.parametrize("base", ["shapes-wrn-10-2", "cifar100-wrn-28-10", "cifar100-pyramidnet-200-240"])
def test_the_ablation_takes_one_thing_away_at_a_time(base: str) -> None:
    variants = ("stochastic-saliency", "stochastic-area", "deterministic-area")
    full, area, fixed = (bundled(f"{base}-saliency-grafting-{variant}").method.build()[0] for variant in variants)
    assert (full.selection, full.label_mixing, full.grids) == ("stochastic", "saliency", (8,))
    assert area == replace(full, label_mixing="area")
    assert fixed == replace(area, selection="top-k", k=6)


def on_small_files(name: str, roots: dict[str, Path], *, keep_network: bool = False) -> Recipe:
    """The recipe with a few small images of its set, so that a step takes a moment; all else stays."""
    table: dict[str, Any] = bundled(name).model_dump(exclude_none=True)
    data, training = table["data"], table["training"]
    if data["name"] == "shapes":
        data |= {"options": {**data["options"], "size": 16, "per_class": 1}, "pad": 2}
    else:
        data |= {"root": str(roots[data["name"]]), "workers": 0}
    if "per_class_subset" in data:
        data["per_class_subset"] = 1 if data["name"] == "speech-commands" else 2
    if "size" in data["options"] and data["name"] != "shapes":
        data["options"]["size"] = 64
    if not keep_network:
        table["network"]["name"] = SMALL.get(table["network"]["name"], table["network"]["name"])
    phases = [{**phase, "size": 32 + 32 * place, "batch_size": 2} for place, phase in enumerate(training["phases"])]
    training |= {"batch_size": 2, "warmup_epochs": 0, "precision": "fp32", "phases": phases}
    return make_recipe(table)


def take_two_steps(recipe: Recipe) -> None:
    trainer = Trainer(recipe, make_accelerator(recipe))
    before = {key: value.clone() for key, value in trainer.network.named_parameters()}
    for stage in trainer.timeline.stages:  # each image size, where there are several
        batches = stage.loader.batches()
        for number in range(2):
            trainer.set_learning_rate(stage.first_epoch + 0.5)
            [loss] = trainer.optimizer_step(batches, number)
            assert math.isfinite(loss)
    assert any(not torch.equal(value, before[key]) for key, value in trainer.network.named_parameters())


@pytest.mark.parametrize("name", NAMES)
def test_takes_two_steps(name: str, roots: dict[str, Path]) -> None:
    take_two_steps(on_small_files(name, roots))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_takes_two_steps_with_its_own_network(name: str, roots: dict[str, Path]) -> None:
    take_two_steps(on_small_files(name, roots, keep_network=True))
