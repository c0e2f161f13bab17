"""The better of several values, and the word that it was picked on test error."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saligraft.config.recipe_file import load_choices
from saligraft.training import Recipe, SilentReporter, dump_recipe, load_recipe, make_recipe, train_best_of


@pytest.fixture
def recipe_file(tiny_table: dict[str, Any], tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(dump_recipe(make_recipe(tiny_table)))
    return file


def test_the_run_with_the_least_error_is_best(recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = train_best_of(recipe_file, "optimizer.lr=0.05,0.000001", out, reporter=SilentReporter())
    errors = {value: summary["top1_error"]["best"] for value, (summary,) in found.summaries.items()}
    assert errors.keys() == {"0.05", "0.000001"}
    assert errors[found.best] == min(errors.values())
    for value, (folder,) in found.folders.items():
        assert load_recipe(folder / "recipe.toml").optimizer.lr == float(value)
        assert json.loads((folder / "result.json").read_text()) == found.summaries[value][0]
    written = json.loads((out / "best.json").read_text())
    assert written["best"] == found.best
    assert written["picked_on"].startswith("test error")
    again = train_best_of(recipe_file, "optimizer.lr=0.05,0.000001", out, reporter=SilentReporter(), resume=True)
    assert again.summaries == found.summaries


def test_one_value_is_best_over_all_seeds(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 wins by its mean, although 0.2 has the run with the lowest error: picked per seed, both would win once."""
    errors = {(0.1, 4): 20.0, (0.1, 7): 30.0, (0.2, 4): 40.0, (0.2, 7): 15.0}
    trained = []

    def train(recipe: Recipe, folder: Path, **options: Any) -> SimpleNamespace:
        trained.append((recipe.optimizer.lr, recipe.seed, folder.name, options))
        error = errors[recipe.optimizer.lr, recipe.seed]
        return SimpleNamespace(summary={"top1_error": {"best": error}, "seed": recipe.seed})

    monkeypatch.setattr("saligraft.training.best_of.train", train)
    found = train_best_of(recipe_file, "optimizer.lr=0.2,0.1", tmp_path, seeds=(4, 7), resume=True)
    assert found.best == "0.1"
    assert found.errors == {"0.2": 27.5, "0.1": 25.0}
    assert trained == [
        (lr, seed, f"lr-{lr}-seed{seed}", {"resume": True}) for lr, seed in itertools.product((0.2, 0.1), (4, 7))
    ]
    written = json.loads((tmp_path / "best.json").read_text())
    assert (written["best"], written["runs"]["0.2"]["mean_top1_error"]) == ("0.1", 27.5)
    assert [run["folder"] for run in written["runs"]["0.1"]["seeds"]] == ["lr-0.1-seed4", "lr-0.1-seed7"]
    with pytest.raises(ValueError, match="seeds must differ, got 1, 1"):
        train_best_of(recipe_file, "optimizer.lr=0.2,0.1", tmp_path, seeds=(1, 1))


def test_a_mistake_in_the_last_value_shows_before_the_first_is_trained(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"optimizer\.weight_decay must be greater than or equal to 0, got -1"):
        train_best_of(recipe_file, "optimizer.weight_decay=0.1,-1.0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["mine", "[]", '{"best": 1}'])
def test_a_user_s_best_json_is_not_replaced(content: str, recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "best.json").write_text(content)
    with pytest.raises(ValueError, match=r"best\.json is not the result of a best-of: choose another folder"):
        train_best_of(recipe_file, "optimizer.lr=0.05,0.01", tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"best.json", recipe_file.name}
    assert (tmp_path / "best.json").read_text() == content


@pytest.mark.parametrize("text", ["optimizer.lr", "optimizer.lr=1", "=1,2", "optimizer.lr=1,,2", "optimizer.lr=1,1"])
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"best-of must read section\.key=value,value with different values, got "):
        load_choices("shapes-wrn-10-2", text)


def test_seeds_are_not_a_choice() -> None:
    with pytest.raises(ValueError, match=r"other than the seed, got 'seed=1,2'; seeds are set by --seeds"):
        load_choices("shapes-wrn-10-2", "seed=1,2")


def test_each_run_is_titled_by_its_value_and_seed() -> None:
    setting, recipes = load_choices("shapes-wrn-10-2", "optimizer.weight_decay = 0.0005, 0.0001", seeds=(3, 4))
    assert setting == "optimizer.weight_decay"
    assert [run.seed for run in recipes["0.0001"]] == [3, 4]
    assert recipes["0.0001"][1].title == "Shapes, WRN-10-2, plain training, weight_decay = 0.0001, seed 4"
