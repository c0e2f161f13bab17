"""Pictures and CSV files of evaluations hold what was measured."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image

from saligraft.reports.evaluation import save_confusion, save_reliability, write_confusion, write_predictions
from saligraft.training import ClassErrors, Predictions, Scores, calibration


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_predictions_as_csv(tmp_path: Path) -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [1.0, 3.0]])
    predictions = Predictions(torch.tensor([0, 1, 0]), logits, Scores(0, 0, 0))
    head, *rows = read(write_predictions(predictions, ("a, b", 'the "c"'), tmp_path / "new" / "p.csv"))
    assert head == ["index", "label", "true class", "predicted", "predicted class", "confidence", "p(true)"]
    assert [row[:5] for row in rows] == [
        ["0", "0", "a, b", "0", "a, b"],
        ["1", "1", 'the "c"', "0", "a, b"],
        ["2", "0", "a, b", "1", 'the "c"'],
    ]
    assert [float(row[5]) for row in rows] == pytest.approx([0.880797, 0.5, 0.880797])
    assert [float(row[6]) for row in rows] == pytest.approx([0.880797, 0.5, 0.119203])


def test_confusion_as_csv(tmp_path: Path) -> None:
    classes = ClassErrors(("cat", "dog"), torch.tensor([[3, 1], [0, 0]]))
    assert read(write_confusion(classes, tmp_path / "c.csv")) == [
        ["true class", "images", "error", "cat", "dog"],
        ["cat", "4", "25.0000", "3", "1"],
        ["dog", "0", "", "0", "0"],
    ]


@pytest.mark.parametrize("count", [2, 100])
def test_confusion_as_picture(tmp_path: Path, count: int) -> None:
    names = tuple(f"$class_{number}" for number in range(count))  # a dollar is no formula
    with Image.open(save_confusion(ClassErrors(names, torch.eye(count).long()), tmp_path / "c.png")) as picture:
        assert min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 24)) > 10


def test_reliability_diagram_names_its_error(tmp_path: Path) -> None:
    found = calibration(torch.tensor([0.9, 0.9, 0.6, 0.3]), torch.tensor([True, False, True, True]))
    with Image.open(save_reliability(found, tmp_path / "r.png")) as picture:
        assert picture.size[1] > picture.size[0] > 300
    assert "<svg" in save_reliability(found, tmp_path / "r.svg").read_text(encoding="utf-8")
