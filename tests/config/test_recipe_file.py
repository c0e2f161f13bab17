"""Recipe files: bases, overrides, and TOML that reads back as it was."""

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saligraft.config.recipe import make_recipe
from saligraft.config.recipe_file import dump_toml, merge, parse_override
from saligraft.training import dump_recipe, load_recipe

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
TABLES = st.recursive(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), SCALARS | st.lists(SCALARS), max_size=4),
    lambda inner: st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), SCALARS | inner, max_size=4),
    max_leaves=8,
)


def without_empty_tables(table: dict[str, Any]) -> dict[str, Any]:
    inner = {k: without_empty_tables(v) if isinstance(v, dict) else v for k, v in table.items()}
    return {k: v for k, v in inner.items() if v != {}}


@given(TABLES)
def test_any_table_reads_back_as_it_was_written(table: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(table)) == without_empty_tables(table)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"title": 'a "title" with \\ and é', "data": {"root": "some/folder"}},
        {"method": {"name": "saliency-grafting", "options": {"grids": [2, 4]}}, "training": {"copies": 2}},
        {"schedule": {"name": "step", "milestones": [10, 20.5]}},
        {"training": {"trackers": ["tensorboard"]}, "optimizer": {"lr": 1e-5}},
        {"network": {"name": "wrn-10-1", "options": {"drop_block": {"block_size": 5}}}},
    ],
)
def test_a_dumped_recipe_is_the_same_recipe(table: dict[str, Any], tmp_path: Path) -> None:
    recipe = make_recipe(table)
    file = tmp_path / "recipe.toml"
    file.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(file) == recipe


def test_a_dumped_recipe_writes_every_setting_out() -> None:
    table = tomllib.loads(dump_recipe(make_recipe({"method": {"name": "saliency-grafting"}})))
    assert table["method"]["options"]["temperature"] == 0.2
    assert table["data"]["options"] == {"size": 32, "per_class": 100, "seed": 0}
    own = {"originals", "passes", "loss_weights", "loss_combination"}  # left to the method, whichever it is set to
    empty = {"loss_options"}
    assert table["training"].keys() == type(make_recipe({}).training).model_fields.keys() - own - empty


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("training.epochs=5", {"training": {"epochs": 5}}),
        ("optimizer.lr = 1e-3", {"optimizer": {"lr": 1e-3}}),
        ("data.flip=false", {"data": {"flip": False}}),
        ("network.name=wrn-10-2", {"network": {"name": "wrn-10-2"}}),
        ('title="a = b"', {"title": "a = b"}),
        ("title=a = b", {"title": "a = b"}),
        ("data.root=2024-01-01", {"data": {"root": "2024-01-01"}}),
        ("method.options.grids=[2, 4]", {"method": {"options": {"grids": [2, 4]}}}),
        ("data.root=", {"data": {"root": ""}}),
    ],
)
def test_overrides_are_typed_as_in_toml_with_bare_strings(text: str, table: dict[str, Any]) -> None:
    assert parse_override(text) == table


@pytest.mark.parametrize("text", ["training.epochs", "=3", "training.=3", ""])
def test_a_malformed_override_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a setting must read section.key=value"):
        parse_override(text)


def test_merging_is_table_by_table() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merge(base, {"a": {"y": 5}, "c": 4}) == {"a": {"x": 1, "y": 5}, "b": 3, "c": 4}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}


def test_another_name_drops_what_the_old_name_s_keys_meant() -> None:
    base = {
        "method": {"name": "mixup", "options": {"alpha": 3.0}},
        "schedule": {"name": "step", "milestones": [1]},
        "optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.8, "nesterov": True, "betas": [0.8, 0.9]},
    }
    changes = {"method": {"name": "cutmix"}, "schedule": {"name": "cosine"}, "optimizer": {"name": "adam"}}
    merged = merge(base, changes)
    assert merged == {
        "method": {"name": "cutmix"},
        "schedule": {"name": "cosine"},
        "optimizer": {"name": "adam", "lr": 0.3},
    }
    assert merge(base, {"method": {"name": "mixup"}})["method"]["options"] == {"alpha": 3.0}
    assert load_recipe("cifar100-wrn-28-10", ["optimizer.name=RAdam"]).optimizer.nesterov is False
    losses = {"training": {"loss": "mine:focal", "loss_options": {"gamma": 1.0}, "epochs": 2}}
    assert merge(losses, {"training": {"loss": "cross-entropy"}})["training"] == {"loss": "cross-entropy", "epochs": 2}
    assert merge(losses, {"training": {"loss": "mine:focal"}}) == losses


def test_overrides_apply_names_first_and_later_ones_win(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text('[method]\nname = "mixup"\noptions.alpha = 3.0\n')
    recipe = load_recipe(file, ["method.options.alpha=0.7", "method.name=cutmix", "seed=1", "seed=2"])
    assert recipe.method.name == "cutmix"
    assert recipe.method.options["alpha"] == 0.7
    assert recipe.seed == 2
    assert load_recipe(file, ["seed=2"], seed=9).seed == 9


def test_overrides_reach_the_parts_of_compositions_and_choices(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(
        '[method]\nname = "saliency-grafting"\nsaliency.name = "cam"\nsaliency.options.negative = "clamp"\n'
    )
    composed = load_recipe(file, ["method.options.mixup.alpha=0.2", "method.name=cutout+mixup"]).method
    assert composed.options["mixup"]["alpha"] == 0.2
    assert composed.saliency.name is None  # it was the other method's
    assert load_recipe(file, ['method.name=["cutout", "mixup"]']).method.name == "cutout+mixup"
    settings = ["method.choices.mixup=0.5", "method.choices.cutmix=0.5", "method.options.cutmix.probability=0.25"]
    chosen = load_recipe(file, ["method.name=random-choice", *settings, "method.options.per=sample"]).method
    assert chosen.choices == {"mixup": 0.5, "cutmix": 0.5}
    assert (chosen.options["per"], chosen.options["cutmix"]["probability"]) == ("sample", 0.25)
    inner = load_recipe(file, ["method.saliency.options.over=max", "method.saliency.name=input-gradient"]).method
    assert (inner.saliency.name, inner.saliency.options) == ("input-gradient", {"of": "loss", "over": "max"})


def test_extends_says_only_what_differs(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("seed = 4\n[training]\nepochs = 7\nbatch_size = 8\n")
    (tmp_path / "middle.toml").write_text('extends = "base"\n[training]\nepochs = 9\n')
    (tmp_path / "child.toml").write_text('extends = "middle.toml"\n[method]\nname = "mixup"\n')
    recipe = load_recipe(tmp_path / "child.toml")
    assert (recipe.seed, recipe.training.epochs, recipe.training.batch_size) == (4, 9, 8)
    assert recipe.method.name == "mixup"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a = = 3", "r.toml is not valid TOML: .*line 1"),
        ('extends = "nowhere"', r"no recipe file or bundled recipe 'nowhere'; all \d+ of them: saligraft list"),
        ("extends = 3", "extends must name a recipe, got 3"),
        ('extends = "r.toml"', "extends itself"),
        ("rows = 3", "unknown key 'rows'"),
        ("rows.cutmix = 3", r"r.toml: rows.cutmix must be a table, and may extend an earlier row, got 3"),
        ('[rows.cutmix]\nextends = "mixup"', r"r.toml: rows.cutmix must be .*an earlier row, got .*'mixup'"),
        ("[rows.cutmix]\nextends = [1]", r"r.toml: rows.cutmix must be .*an earlier row"),
    ],
)
def test_bad_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_recipe(tmp_path / "r.toml")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"r.toml is not valid TOML"):
        load_recipe(tmp_path / "r.toml")


def test_an_unknown_name_lists_similar_ones() -> None:
    with pytest.raises(
        ValueError, match=r"'shapes-wrn-10-2-cutmx'; similar: shapes-wrn-10-2-cutmix, .*saligraft list recipes"
    ):
        load_recipe("shapes-wrn-10-2-cutmx")


ROWS = """
title = "Mine"
paper = "none"
[network]
name = "wrn-10-1"
[rows.none]
title = "plain"
[rows.cutmix]
title = "CutMix"
expected = [{ top1 = [3.0] }]
method.name = "cutmix"
method.options.alpha = 0.5
[rows.cutmix-dropout]
extends = "cutmix"
network.options.dropout = 0.3
[rows.cutout-mixup]
method.name = ["cutout", "mixup"]
"""


def test_a_row_is_laid_over_its_file_and_over_the_row_it_extends(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text(ROWS)
    plain, cutmix, dropout = (load_recipe(file, method=row) for row in (None, "cutmix", "cutmix-dropout"))
    assert (plain.title, cutmix.title, dropout.title) == ("Mine, plain", "Mine, CutMix", "Mine, cutmix-dropout")
    assert plain == load_recipe(file, method="none")
    assert plain.method.name == "none"
    assert dropout.method == cutmix.method
    assert (cutmix.method.options["alpha"], dropout.network.options["dropout"]) == (0.5, 0.3)
    assert load_recipe(file, method="cutout+mixup").method.parts == ("cutout", "mixup")
    assert load_recipe(file, ["method.options.alpha=0.7"], method="cutmix").method.options["alpha"] == 0.7


def test_a_method_without_a_row_has_its_default_options_and_a_notice(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(ROWS)
    for recipe in (tmp_path / "r.toml", "tiny-imagenet-resnet-10"):
        with pytest.warns(
            UserWarning, match=r"has no row 'mixup', so the paper has no result for it; the method's def"
        ):
            mixup = load_recipe(recipe, method="mixup")
        assert mixup == load_recipe(recipe, ["method.name=mixup"])
        assert mixup.title == ""


def test_a_misspelt_method_is_an_error_without_that_notice() -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(ValueError, match="did you mean 'saliency-grafting'"):
        load_recipe("shapes-wrn-10-2", method="saliency-graftin")


def test_a_method_with_a_row_is_that_row_and_warns_of_nothing() -> None:
    with warnings.catch_warnings(action="error"):
        recipe = load_recipe("cifar100-wrn-28-10", method="saliencymix-dropout")
    assert recipe == load_recipe("cifar100-wrn-28-10-saliencymix-dropout")
    assert recipe.title == "CIFAR-100, WRN-28-10, SaliencyMix with dropout"


def test_a_row_takes_no_other_method() -> None:
    words = r"method must be left out for shapes-wrn-10-2-cutmix, a row of shapes-wrn-10-2, got 'mixup'"
    with pytest.raises(ValueError, match=words):
        load_recipe("shapes-wrn-10-2-cutmix", method="mixup")


def test_a_file_extends_a_bundled_row(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "cifar100-wrn-28-10-saliencymix"\nseed = 3\n')
    assert load_recipe(tmp_path / "mine.toml") == load_recipe("cifar100-wrn-28-10-saliencymix", seed=3)


@pytest.mark.parametrize("change", ["data.name=cifar100", "network.name=wrn-16-2", "method.name=cutmix"])
def test_a_recipe_of_something_else_loses_its_title(change: str) -> None:
    title = load_recipe("shapes-wrn-10-2").title
    assert load_recipe("shapes-wrn-10-2", [change]).title == ""
    assert load_recipe("shapes-wrn-10-2", [change, "title=mine"]).title == "mine"
    assert load_recipe("shapes-wrn-10-2", ["training.epochs=3"]).title == title


WARMED = 'title = "warmed"\n[method]\nname = "cutmix"\n[training]\nepochs = 30\nwarmup_epochs = 5\n'


def test_of_several_processes_the_first_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(WARMED)
    for rank, count in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        with warnings.catch_warnings(record=True) as caught:
            load_recipe(tmp_path / "r.toml", ["training.epochs=2"])
        assert len(caught) == count


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (4, 3), (5, 4)])
def test_a_run_made_shorter_than_its_warm_up_still_mixes(epochs: int, warmup: int, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(WARMED)
    message = rf"^training\.warmup_epochs is shortened from 5 to {warmup}, as training\.epochs is set to {epochs}$"
    with pytest.warns(UserWarning, match=message):
        recipe = load_recipe(tmp_path / "r.toml", [f"training.epochs={epochs}"])
    assert (recipe.training.epochs, recipe.training.warmup_epochs) == (epochs, warmup)
    assert recipe.title == "warmed"


def test_a_warm_up_that_fits_or_is_asked_for_stays(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(WARMED)
    assert load_recipe(tmp_path / "r.toml", ["training.epochs=6"]).training.warmup_epochs == 5
    asked = ["training.epochs=3", "training.warmup_epochs=3"]
    assert load_recipe(tmp_path / "r.toml", asked).training.warmup_epochs == 3
    refused = r"training.warmup_epochs must be <= training.epochs \(3\), got 4"
    with pytest.raises(ValueError, match=refused):
        load_recipe(tmp_path / "r.toml", ["training.epochs=3", "training.warmup_epochs=4"])
    (tmp_path / "short.toml").write_text('extends = "r"\n[training]\nepochs = 3\n')
    with pytest.raises(ValueError, match=r"training.warmup_epochs must be <= training.epochs \(3\), got 5"):
        load_recipe(tmp_path / "short.toml")


@pytest.mark.parametrize("epochs", ["0", "true", "2.0", "many"])
def test_a_wrong_number_of_epochs_is_named_as_such(epochs: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(WARMED)
    with pytest.raises(ValueError, match=r"^\S+: training.epochs must be [^;]*$"):
        load_recipe(tmp_path / "r.toml", [f"training.epochs={epochs}"])


def test_a_recipe_written_before_later_settings_existed_keeps_its_meaning(tmp_path: Path) -> None:
    """As an older version wrote it for a run on CUB: without the new keys, and with the views of then."""
    (tmp_path / "recipe.toml").write_text(
        """
title = "old"
seed = 1
[data]
name = "cub"
pad = 4
flip = true
workers = 0
subset_seed = 0
[data.options]
size = 64
scale = [0.08, 1.0]
[network]
name = "wrn-10-1"
[method]
name = "saliency-grafting"
[method.options]
temperature = 0.2
grids = [4, 8]
[method.saliency]
name = "feature-map"
[training]
epochs = 10
batch_size = 32
label_smoothing = 0.1
[optimizer]
name = "sgd"
[schedule]
name = "cosine"
"""
    )
    recipe = load_recipe(tmp_path / "recipe.toml")
    assert recipe.data.options["scale"] == (0.08, 1.0)
    assert not recipe.data.keep_last
    assert (recipe.training.loss, recipe.network.weights) == ("cross-entropy", None)
    assert (recipe.method.saliency.network, recipe.method.saliency.options["channels"]) == (None, "sum")
    (tmp_path / "again.toml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe
