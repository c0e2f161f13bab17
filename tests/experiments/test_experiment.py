"""The paper's experiments: every row loads at every scale, rows and numbers are the paper's, equal runs are shared."""

import itertools
from pathlib import Path

import pytest

from saligraft.experiments.experiment import (
    EQUAL_PASSES,
    SCALES,
    Row,
    ScaleName,
    jobs_of,
    passes_of,
    row_settings,
    rows_of,
    run_folder,
    training_seconds,
)
from saligraft.experiments.measures import MEASURE_FUNCTIONS
from saligraft.experiments.paper import EXPERIMENTS, regime
from saligraft.experiments.paper.regimes import WRN
from saligraft.training import load_recipe

PLAIN_EQUAL = f"none-{EQUAL_PASSES}"
# Rows of the paper's tables that carry a number of it.
PAPER_ROWS = {
    "table-pyramidnet": 15,
    "table-wrn": 9,
    "table-tiny": 6,
    "table-imagenet": 8,
    "table-scarcity": 15,
    "table-occlusion": 3,
    "table-ablation": 6,
    "table-speech": 4,
    "table-localization": 5,
    "table-saliency": 2,
}


def rows(name: str, scale: ScaleName, data_root: Path | None = None) -> dict[str, Row]:
    found = rows_of(EXPERIMENTS[name], scale, regime, data_root)
    assert len({row.name for row in found}) == len(found)
    return {row.name: row for row in found}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_is_a_valid_recipe(
    name: str, scale: ScaleName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no folder data is
    for data_root in (None, Path("data")):
        for row in rows(name, scale, data_root).values():
            recipe = row.load(1, row.variants[0])
            assert recipe.seed == 1
            on_shapes = scale == "smoke" or (scale == "laptop" and data_root is None) or row.name.startswith("shapes-")
            assert (recipe.data.name == "shapes") == on_shapes
            assert recipe.data.root == (None if on_shapes or data_root is None else "data")
            assert not recipe.never_mixes
    assert set(EXPERIMENTS[name].measures) <= MEASURE_FUNCTIONS.keys()


@pytest.mark.parametrize(("name", "count"), PAPER_ROWS.items())
def test_tables_have_the_papers_rows_and_numbers(name: str, count: int) -> None:
    for scale in ("paper", "smoke"):
        printed = [row for row in rows(name, scale).values() if row.expected]
        if scale == "paper":
            assert len(printed) == count
        assert printed


def test_numbers_stand_beside_the_metric_that_the_paper_reports() -> None:
    assert rows("table-wrn", "paper")["saliency-grafting"].expected == {
        "top1_error/best": (15.32, 0.13),
        "top5_error/best": (3.54, 0.03),
    }
    assert rows("table-tiny", "paper")["none"].expected["top1_error/last10_mean"] == (38.54, 0.15)
    assert rows("table-scarcity", "paper")["puzzlemix-50"].expected == {"top1_error/best": (54.69, 0.54)}
    assert rows("table-occlusion", "paper")["puzzlemix"].expected == {
        "occlusion/0": (35.79,),
        "occlusion/12.5": (50.91,),
        "occlusion/25": (66.23,),
    }
    assert rows("table-ablation", "paper")["wrn-saliency-grafting-stochastic-area"].expected == {
        "top1_error/best": (15.67,)
    }
    assert rows("table-localization", "paper")["cutmix"].expected == {"localization/accuracy": (27.95, 0.52)}
    assert rows("table-wrn", "paper")["manifold-mixup"].quoted == "Verma et al."
    assert all(not row.expected for row in rows("figure-temperature", "paper").values())


def test_the_paper_scale_is_the_bundled_recipe() -> None:
    for name, variant in (("cutmix", "optimizer.weight_decay=0.0005"), ("saliency-grafting", "")):
        ours = rows("table-wrn", "paper")[name].load(2, variant)
        theirs = load_recipe(WRN, [variant] if variant else [], seed=2, method=name)
        assert ours == theirs.model_copy(update={"title": "", "paper": ""})


def test_smaller_scales_take_over_what_a_row_changes() -> None:
    recipe = rows("table-wrn", "laptop")["saliencymix-dropout"].load(0)
    assert recipe.network.options["dropout"] == 0.3
    assert recipe.method.options["probability"] == 0.5
    assert (recipe.network.name, recipe.network.options["stem_stride"]) == ("wrn-10-2", 2)
    warm = rows("table-wrn", "laptop")["saliency-grafting"].load(0).training
    assert (warm.warmup_epochs, warm.epochs) == (5, 60)
    assert rows("table-wrn", "laptop")["cutmix"].load(0).training.warmup_epochs == 0
    assert row_settings(WRN, "none", 5) == ()


def test_training_at_equal_passes_makes_as_many() -> None:
    found = rows("table-wrn", "laptop")
    assert passes_of(found[PLAIN_EQUAL].load(0)) == passes_of(found["saliency-grafting"].load(0)) == (115, 115)
    assert PLAIN_EQUAL not in rows("table-wrn", "paper")
    assert {f"none-{count}-{EQUAL_PASSES}" for count in (50, 100)} <= rows("table-scarcity", "laptop").keys()
    for name in ("figure-temperature", "readings"):  # several rows of Saliency Grafting: the first one counts
        assert rows(name, "laptop")[PLAIN_EQUAL].load(0).training.epochs == 115
    compared = rows("passes", "laptop")
    for method in ("none", "mixup", "cutmix"):
        assert passes_of(compared[f"{method}-{EQUAL_PASSES}"].load(0)) == (115, 115)
        assert compared[f"{method}-{EQUAL_PASSES}"].load(0).method == compared[method].load(0).method
    assert passes_of(compared["saliency-grafting-remembered"].load(0)) == passes_of(compared["none"].load(0))


def test_settings_are_chosen_on_images_that_no_table_is_tested_on() -> None:
    for data_root in (None, Path("data")):
        for name in EXPERIMENTS:
            held_out = {row.load(0).data.held_out for row in rows(name, "laptop", data_root).values()}
            assert held_out == {name in ("regime", "readings")}


def test_overrides_reach_every_row_and_keep_passes_equal() -> None:
    changed = rows_of(EXPERIMENTS["table-wrn"], "laptop", regime, None, ["training.epochs=10"])
    assert {row.load(0).training.epochs for row in changed} == {10, 15}  # 5 of warm-up, 5 of two passes


def test_an_override_replaces_the_variants_of_its_setting() -> None:
    for settings, decays in ((["optimizer.weight_decay=0.001"], [0.001]), (["optimizer.lr=0.1"], [0.0005, 0.0001])):
        for row in rows_of(EXPERIMENTS["table-wrn"], "paper", regime, None, settings):
            assert [row.load(0, variant).optimizer.weight_decay for variant in row.variants] == decays


def test_rows_of_some_methods_keep_their_passes() -> None:
    kept = rows_of(EXPERIMENTS["table-wrn"], "laptop", regime, None, methods=["none", "cutmix"])
    every = rows("table-wrn", "laptop")
    assert kept == [every[name] for name in ("none", "none-equal-passes", "cutmix")]


def test_passes_count_copies_and_warm_up() -> None:
    recipe = rows("figure-copies", "laptop")["saliency-grafting-4"].load(0)
    assert passes_of(recipe).forward == 5 + 55 * 5
    assert passes_of(rows("table-wrn", "laptop")["augmix"].load(0)) == (180, 180)


def test_experiments_share_equal_runs_wherever_the_data_are(tmp_path: Path) -> None:
    def folders(name: str, root: Path | None = None) -> set[Path]:
        experiment = EXPERIMENTS[name]
        return {job.folder for job in jobs_of(experiment, list(rows(name, "laptop", root).values()), 2, tmp_path)}

    assert folders("table-tiny") < folders("table-occlusion") < folders("table-tiny") | folders("table-wrn")
    assert len(folders("table-saliency") - folders("table-wrn")) == 2  # CAM, two seeds
    for name, point in (("figure-temperature", "0.2"), ("figure-threshold", "1"), ("figure-copies", "1")):
        own = rows(name, "laptop")[f"saliency-grafting-{point}"].load(0)
        assert run_folder(own, tmp_path) in folders("table-wrn"), name
    assert folders("table-wrn", Path("a")) == folders("table-wrn", Path("b")) != folders("table-wrn")
    grafting = rows("table-wrn", "laptop")["saliency-grafting"]
    assert run_folder(grafting.load(1), tmp_path).name == "seed-1"
    assert run_folder(grafting.load(1), tmp_path).parent == run_folder(grafting.load(0), tmp_path).parent


def test_a_parent_folder_holds_the_data_of_several_experiments(tmp_path: Path) -> None:
    for name in ("cifar100", "tiny-imagenet"):
        (tmp_path / name).mkdir()
    for experiment, folder in (("table-wrn", "cifar100"), ("table-tiny", "tiny-imagenet"), ("table-localization", "")):
        roots = {row.load(0).data.root for row in rows(experiment, "laptop", tmp_path).values()}
        assert roots == {str(tmp_path / folder)}
    pyramidnet = [row.load(0).data.root for row in rows("table-pyramidnet", "laptop", tmp_path).values()]
    assert set(pyramidnet) == {str(tmp_path / "cifar100")}  # its recipe is one of shapes, with other data
    truth = [row.load(0).data.root for row in rows("label-truth", "laptop", tmp_path).values()]
    assert truth == [None, str(tmp_path / "tiny-imagenet"), str(tmp_path)]


def test_a_damaged_timing_names_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "timing.jsonl"
    file.write_text('{"machine": {}}\n{"cpu_seconds": 1.5}\n{"cpu_seconds": 2}\n')
    assert training_seconds(tmp_path) == 3.5
    for damaged in ('{"cpu_sec', '{"cpu_seconds": []}', "3"):
        file.write_text(f'{{"machine": {{}}}}\n{damaged}\n')
        with pytest.raises(ValueError, match=r"timing\.jsonl is damaged in line 2"):
            training_seconds(tmp_path)


def test_the_command_of_a_row_trains_its_recipe(tmp_path: Path) -> None:
    row = rows("table-scarcity", "laptop", Path("data"))["cutmix-100"]
    words = row.command(3, "", tmp_path)
    settings = [text for flag, text in itertools.pairwise(words) if flag == "--set"]
    again = load_recipe(words[2], settings, seed=3).model_copy(update={"title": "", "paper": ""})
    assert again == row.load(3)
