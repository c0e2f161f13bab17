"""`saligraft demo` as a user types it, in the smallest size."""

from pathlib import Path

import pytest
import torch

from saligraft.cli import run
from saligraft.training import SilentReporter, load_recipe, train


@pytest.mark.slow
def test_the_demo_end_to_end_and_again(tmp_path: Path, capsys, monkeypatch) -> None:
    out = tmp_path / "demo"
    command = ["demo", "--scale", "smoke", "--jobs", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["saligraft", *command])
    assert run(command) == 0
    first = capsys.readouterr().out
    assert "8 runs, 0 of them finished" in first
    assert first.splitlines()[1].startswith("Less than a minute on 1 idle core;")
    assert "| Plain at equal passes |" in first
    *_, verdict, page, advice = first.splitlines()
    assert verdict.startswith("Over 2 paired seeds, the error with Saliency Grafting cannot be")
    assert page == f"Page: {out / 'report.html'}"
    assert advice.endswith(f"runs kept: saligraft {' '.join(command)} --seeds 5")
    folder = next(out.glob("runs/*saliency-grafting*/seed-0"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(load_recipe(folder / "recipe.toml"), tmp_path / "alone", reporter=SilentReporter())
    torch.set_num_threads(threads)
    for name in ("metrics.jsonl", "result.json", "model.safetensors"):
        assert (tmp_path / "alone" / name).read_bytes() == (folder / name).read_bytes()
    assert run(command) == 0
    again = capsys.readouterr().out
    assert again.startswith("Finished before")
    assert again.splitlines()[2:] == first.splitlines()[-len(again.splitlines()) + 2 :]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--jobs", "x"], "--jobs"),
        (["--scale", "paper"], "'--scale': 'paper' is not one of"),
        (["--overwrite"], "No such option"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(tmp_path: Path, capsys, arguments: list[str], words: str) -> None:
    assert run(["demo", *arguments, "--out", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert words in captured.err
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "out").write_text("")
    assert run(["demo", "--out", str(tmp_path / "out")]) == 2
    assert "--out must be a folder, got the file" in capsys.readouterr().err
