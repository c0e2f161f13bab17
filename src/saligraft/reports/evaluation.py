"""Pictures and tables of evaluations: reliability diagram, confusion matrix, predictions as CSV."""

import csv
import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from saligraft.io.files import atomic_path, write_atomic
from saligraft.reports.figures import CURVE_COLOURS, GRID_LINE, INK, MUTED, PAPER
from saligraft.training.evaluate import Calibration, ClassErrors
from saligraft.training.saved_run import Predictions

PERCENT = PercentFormatter(symbol="\u00a0%")
NAMED_CLASSES = 30  # more class names than this cannot be read beside a confusion matrix


def save_reliability(calibration: Calibration, path: Path) -> Path:
    """Draw accuracy against confidence, bin by bin, above the share of the images in each bin.

    Args:
        calibration: What to draw.
        path: The PNG or SVG file.

    Returns:
        The file.
    """
    bins = len(calibration.counts)
    left = np.arange(bins) * 100 / bins
    filled = np.array(calibration.counts) > 0
    figure = Figure(figsize=(4.6, 5.4), facecolor=PAPER, layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    bars = {"width": 100 / bins, "align": "edge", "edgecolor": PAPER}
    top.bar(left[filled], np.array(calibration.accuracies)[filled], color=CURVE_COLOURS[1], label="accuracy", **bars)
    top.plot(
        np.array(calibration.confidences)[filled],
        np.array(calibration.accuracies)[filled],
        "o",
        color=CURVE_COLOURS[2],
        label="at the bin's mean confidence",
    )
    top.plot([0, 100], [0, 100], "--", color=MUTED, linewidth=1, label="perfect calibration")
    top.set(ylim=(0, 100), ylabel="accuracy", title=f"expected calibration error {calibration.ece:.2f} %")
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    shares = 100 * np.array(calibration.counts) / sum(calibration.counts)
    bottom.bar(left, shares, color=CURVE_COLOURS[0], **bars)
    bottom.set(xlim=(0, 100), xlabel="confidence", ylabel="images")
    for axes in (top, bottom):
        axes.grid(axis="y", color=GRID_LINE)
        axes.set_axisbelow(True)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_formatter(PERCENT)
        axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def save_confusion(classes: ClassErrors, path: Path) -> Path:
    """Draw the confusion matrix: of each true class (row), the percentage predicted as each class (column).

    Args:
        classes: What to draw.
        path: The PNG or SVG file.

    Returns:
        The file.
    """
    counts = classes.confusion.double().numpy()
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    count = len(classes.classes)
    named = count <= NAMED_CLASSES
    side = 2.4 + (0.26 * count if named else 5)
    figure = Figure(figsize=(side, side), facecolor=PAPER, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    figure.colorbar(image, shrink=0.7, format=PERCENT, label="share of the true class")
    axes.set(xlabel="predicted class", ylabel="true class")
    if named:
        axes.set_xticks(range(count), classes.classes, rotation=90, fontsize=8, parse_math=False)
        axes.set_yticks(range(count), classes.classes, fontsize=8, parse_math=False)
        for row, column in zip(*np.nonzero(shares >= 0.5), strict=True):
            colour = PAPER if shares[row, column] > 50 else INK
            axes.text(column, row, f"{shares[row, column]:.0f}", ha="center", va="center", fontsize=6, color=colour)
    return _save(figure, path)


def write_confusion(classes: ClassErrors, path: Path) -> Path:
    """Write the confusion matrix as CSV: a row per true class with its test images, error in percent and counts.

    Args:
        classes: What to write.
        path: The file.

    Returns:
        The file.
    """
    rows: list[list[object]] = [["true class", "images", "error", *classes.classes]]
    for name, count, error, own in zip(
        classes.classes, classes.counts, classes.errors, classes.confusion.tolist(), strict=True
    ):
        rows.append([name, count, "" if error is None else f"{error:.4f}", *own])
    return _write_csv(rows, path)


def write_predictions(predictions: Predictions, names: tuple[str, ...], path: Path) -> Path:
    """Write one row per test image: its place, true and predicted class, confidence and the true class's probability.

    Args:
        predictions: Predictions of all test images.
        names: Names of the classes.
        path: The CSV file.

    Returns:
        The file.
    """
    probabilities = predictions.logits.double().softmax(dim=1)
    true = probabilities.gather(1, predictions.labels[:, None])[:, 0]
    columns = (predictions.labels, predictions.predicted, predictions.confidence, true)
    rows: list[list[object]] = [
        ["index", "label", "true class", "predicted", "predicted class", "confidence", "p(true)"]
    ]
    for index, (label, guess, confidence, right) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        rows.append([index, label, names[label], guess, names[guess], f"{confidence:.6f}", f"{right:.6f}"])
    return _write_csv(rows, path)


def _write_csv(rows: list[list[object]], path: Path) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.getvalue())
    return path


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as aside:
        figure.savefig(aside, dpi=144, bbox_inches="tight")
    return path
