"""`saligraft demo` as a user types it, in the smallest size."""

import inspect
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tests.reports.pages import assert_self_contained

from saligraft.cli import run
from saligraft.cli.demo import demo
from saligraft.experiments.demo import DemoSettings
from saligraft.training import SilentReporter, load_recipe, train

SMALL = ["--seeds", "1", "--epochs", "1", "--per-class", "5", "--network", "wrn-10-1", "--minutes", "0.1"]


@pytest.mark.slow
def test_the_demo_end_to_end(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert run(["demo", *SMALL, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    page = assert_self_contained((out / "report.html").read_text(encoding="utf-8"))
    for title in ("Plain training", "CutMix", "Saliency Grafting"):
        assert title in printed
        assert title in page.text
    assert str(out / "report.html") in printed.replace("\n", "")
    assert "1 seed" in page.text
    assert len(page.named("article")) == 6
    for method in ("none", "cutmix", "saliency-grafting"):
        assert (out / method / "seed-0" / "report.html").is_file()
    recipe = load_recipe(out / "saliency-grafting" / "seed-0" / "recipe.toml")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(recipe, tmp_path / "alone", reporter=SilentReporter())
    torch.set_num_threads(threads)
    for name in ("metrics.jsonl", "result.json", "model.safetensors"):
        assert (tmp_path / "alone" / name).read_bytes() == (out / "saliency-grafting" / "seed-0" / name).read_bytes()
    assert run(["demo", *SMALL, "--out", str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0"], "seeds must be"),
        (["--epochs", "x"], "epochs"),
        (["--minutes", "-1"], "minutes must be a finite number > 0"),
        (["--network", "nonsense", "--epochs", "1"], "unknown network"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(tmp_path: Path, capsys, arguments: list[str], words: str) -> None:
    assert run(["demo", *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err


def test_the_options_default_to_the_demos_settings() -> None:
    defaults = {name: value.default for name, value in inspect.signature(demo).parameters.items()}
    settings = asdict(DemoSettings())
    assert {name: defaults[name] for name in settings} == settings
