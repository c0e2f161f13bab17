"""The bundled recipes: each row loads, and each protocol follows the paper and trains on files of its set's form."""

import functools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small_sets import write_small_sets

from saligraft.config.recipe_file import FOLDER, bundled_protocols
from saligraft.methods import REGISTRY
from saligraft.networks import build_network
from saligraft.training import Recipe, Trainer, bundled_recipes, load_recipe, make_recipe
from saligraft.training.accelerator import make_accelerator

PROTOCOLS = tuple(bundled_protocols())
NAMES = tuple(bundled_recipes())
# Those of the paper's own size.
FULL = tuple(name for name in PROTOCOLS if not name.endswith(("wrn-10-2", "resnet-10", "20-24")))
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
# Rows that take steps: all on shapes, and elsewhere those that depend on size, data, network or training of a protocol.
STEPPED: dict[str, tuple[str, ...]] = {
    "cifar100-pyramidnet-200-240": ("drop-block", "attentive-cutmix", "saliency-grafting-shake-drop"),
    "cifar100-resnet-18": ("saliency-grafting",),
    "cifar100-wrn-10-2": ("cutmix",),
    "cifar100-wrn-28-10": ("manifold-mixup", "puzzlemix", "saliency-grafting-cam"),
    "cub-resnet-10": ("saliency-grafting",),
    "cub-resnet-50": ("puzzlemix", "saliency-grafting"),
    "imagenet-resnet-10": ("cutmix",),
    "imagenet-resnet-50": ("saliency-grafting",),
    "imagenet-resnet-50-fast": ("manifold-mixup", "augmix", "puzzlemix", "saliency-grafting"),
    "shapes-pyramidnet-20-24": ("none", "manifold-mixup"),
    "shapes-wrn-10-2": tuple(bundled_protocols()["shapes-wrn-10-2"]),
    "speech-commands-wrn-10-2": ("none",),
    "speech-commands-wrn-28-10": ("mixup", "saliency-grafting"),
    "tiny-imagenet-resnet-10": ("saliency-grafting",),
    "tiny-imagenet-resnet-18": ("saliencymix", "puzzlemix"),
}
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


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_protocol_states_source_expectation_command_and_time(protocol: str) -> None:
    lines = (FOLDER / f"{protocol}.toml").read_text(encoding="utf-8").splitlines()
    header = "\n".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))])
    for part in ("# Expected: ", f"# Command: saligraft train {protocol} --method ", "# Time: "):
        assert part in header
    assert "none" in bundled_protocols()[protocol]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_load_and_differ_from_plain_training_in_the_method_alone(protocol: str) -> None:
    base = bundled(protocol).model_dump()
    for row in bundled_protocols()[protocol].keys() - {"none"}:
        recipe = bundled(f"{protocol}-{row}")
        assert recipe == load_recipe(protocol, method=row)
        assert recipe.paper
        other = recipe.model_dump()
        assert base["network"]["name"] == other["network"]["name"], row
        changed = {
            f"{section}.{key}"
            for section in ("data", "network", "training", "optimizer")
            for key in base[section]
            if base[section][key] != other[section][key]
        }
        clean_loss = {"training.originals", "training.loss_combination"} if "puzzlemix" in row else set()
        assert changed <= {"network.options", "training.warmup_epochs", "optimizer.weight_decay"} | clean_loss, row
        assert (base["schedule"], base["seed"]) == (other["schedule"], other["seed"]), row
        regularizers = other["network"]["options"].keys() - base["network"]["options"].keys()
        assert regularizers <= {"dropout", "drop_block", "shake_drop"}, row


def test_expected_results_are_the_tables_of_the_paper_or_our_own_and_machine_readable() -> None:
    results = [
        (result, row)
        for rows in bundled_protocols().values()
        for row, table in rows.items()
        for result in table["expected"]
    ]
    for protocol, rows in bundled_protocols().items():
        for setting in {result["set"] for table in rows.values() for result in table["expected"] if "set" in result}:
            load_recipe(protocol, [setting])
    for result, _ in results:
        assert result.keys() <= {"table", "metric", "top1", "top5", "localization", "quoted", "set", "occlude", "on"}
        assert result.get("metric") in {None, "best", "last10_mean", "final"}
        for number in [result[kind] for kind in ("top1", "top5", "localization") if kind in result]:
            assert len(number) in (1, 2)
            assert all(0 < part < 100 for part in number)
    # Rows of the paper's tables; Table 11's other row is Table 3's, and Table 7's first column is Table 4's.
    counts = {2: 15, 3: 9, 4: 6, 5: 8, 6: 15, 7: 9, 8: 6, 9: 4, 10: 5, 11: 2}
    assert Counter(result["table"] for result, _ in results if "table" in result) == counts
    for table in (2, 3, 4, 5, 8, 9):  # the paper's claim
        best, row = min((result["top1"][0], row) for result, row in results if result.get("table") == table)
        assert row.startswith("saliency-grafting"), (table, best)


def test_no_two_recipes_are_one() -> None:
    seen: dict[str, str] = {}
    for name in NAMES:
        content = bundled(name).model_dump_json(exclude={"title", "paper"})
        assert content not in seen, f"{name} and {seen[content]} train the same"
        seen[content] = name
    assert len({bundled(name).title for name in NAMES}) == len(NAMES)


def test_every_method_has_a_bundled_recipe() -> None:
    assert {part for name in NAMES for part in bundled(name).method.parts} == set(REGISTRY)


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


@pytest.mark.parametrize("protocol", [name for name in FULL if not name.startswith("speech-commands")])
def test_optimizers_are_those_of_appendices_a_and_b(protocol: str) -> None:
    recipe = bundled(protocol)
    epochs = {"pyramidnet-200-240": 300, "tiny": 600, "wrn-28-10": 400, "cifar100-resnet-18": 400, "imagenet-": 100}
    expected = next((count for part, count in epochs.items() if part in protocol), None)
    assert recipe.training.epochs == expected or recipe.data.name == "cub"
    assert recipe.optimizer.name == ("adam" if recipe.data.name == "cub" else "sgd")
    assert recipe.optimizer.momentum == 0.9
    decays = {bundled(name).optimizer.weight_decay for name, (of, _) in bundled_recipes().items() if of == protocol}
    assert decays <= ({0.0005, 0.0001} if recipe.data.name == "cifar100" else {0.0001})
    assert recipe.optimizer.decay_norm_and_bias == (recipe.data.name != "imagenet")
    assert recipe.optimizer.head_lr == (0.01 if recipe.data.name == "cub" else None)


@pytest.mark.parametrize("protocol", FULL)
def test_methods_are_as_in_appendix_b(protocol: str) -> None:
    on_cifar_or_tiny = protocol.startswith(("cifar100", "tiny"))
    for row in bundled_protocols()[protocol].keys() - {"none"}:
        recipe = bundled(f"{protocol}-{row}")
        for name, method in zip(recipe.method.parts, recipe.method.build(), strict=True):
            if name == "saliency-grafting":
                ablation = "stochastic" in row or "deterministic" in row
                assert (method.alpha, recipe.training.warmup_epochs) == (2.0, 5), row
                assert method.temperature == (0.3 if recipe.data.name == "imagenet" else 0.2) or ablation, row
                grids = (4, 7, 8) if recipe.data.name in ("imagenet", "cub") else (4, 8)
                assert method.grids == ((8,) if ablation else grids), row
            elif name in ("mixup", "cutmix", "saliencymix") and on_cifar_or_tiny:
                assert (method.alpha, method.per) == (1.0, "batch"), row
                assert method.probability == (1.0 if name == "mixup" or "every-batch" in row else 0.5), row
            elif name == "manifold-mixup" and on_cifar_or_tiny:  # of its authors, but 1 in Table 2
                assert (method.alpha, method.per) == (1.0 if "pyramidnet" in protocol else 2.0, "batch"), row
            elif name == "puzzlemix" and on_cifar_or_tiny:
                assert (method.beta, method.gamma, method.eta, method.transport_cost) == (1.2, 0.5, 0.2, 0.8), row


TABLE_8 = ("stochastic-saliency", "stochastic-area", "deterministic-area")
TABLE_8_BY_K = ("k6-stochastic", "k6-stochastic-area", "k6-deterministic")


@pytest.mark.parametrize(
    ("base", "rows", "temperature", "k"),
    [
        ("shapes-wrn-10-2", TABLE_8, 0.055, 6),
        ("cifar100-wrn-28-10", TABLE_8, 0.2, 13),  # the main table's run, and k matched to it
        ("cifar100-pyramidnet-200-240", TABLE_8, 0.2, 13),
        ("cifar100-wrn-28-10", TABLE_8_BY_K, 0.023, 6),  # k of Table 2, and T matched to it
        ("cifar100-pyramidnet-200-240", TABLE_8_BY_K, 0.023, 6),
    ],
)
def test_the_ablation_takes_one_thing_away_at_a_time(
    base: str, rows: tuple[str, ...], temperature: float, k: int
) -> None:
    names = [f"{base}-saliency-grafting-{row}" for row in rows]
    full, area, fixed = (bundled(name).method.build()[0] for name in names)
    assert (full.selection, full.label_mixing, full.grids) == ("stochastic", "saliency", (8,))
    assert full.temperature == temperature
    assert area == replace(full, label_mixing="area")
    assert replace(fixed, temperature=temperature) == replace(area, selection="top-k", k=k)  # top-k reads no T


@pytest.mark.parametrize("name", ["tiny-imagenet-resnet-18-puzzlemix", "imagenet-resnet-50-fast-puzzlemix"])
def test_puzzlemix_adds_the_loss_of_the_originals_where_its_authors_do(name: str) -> None:
    recipe = bundled(name)
    assert recipe.with_originals
    assert recipe.loss_weights == (1.0, 1.0)


def test_imagenets_fast_protocol_starts_as_its_authors_do() -> None:
    assert bundled("imagenet-resnet-50-fast").network.options == {"zero_gamma": True, "head_std": 0.01}


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
    table["optimizer"]["lr"] /= 100  # so that a step on 2 images leaves no answer certain, and its gradient 0
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


@pytest.mark.parametrize(("protocol", "row"), [(name, row) for name, rows in STEPPED.items() for row in rows])
def test_takes_two_steps(protocol: str, row: str, roots: dict[str, Path]) -> None:
    take_two_steps(on_small_files(protocol if row == "none" else f"{protocol}-{row}", roots))


def test_steps_are_taken_on_every_protocol() -> None:
    assert STEPPED.keys() == set(PROTOCOLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_takes_two_steps_with_its_own_network(name: str, roots: dict[str, Path]) -> None:
    take_two_steps(on_small_files(name, roots, keep_network=True))
