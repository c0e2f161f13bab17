"""Evaluation of networks and finished runs: errors, also by class, occlusion, localisation, calibration, corruptions.

Each evaluation of a run is one function, `evaluate_...`, of a run folder or of a `SavedRun`, which is loaded once and
whose predictions are computed once. Each test image counts once over all processes.
Shapes: N test images, B batch, C channels, H W pixels, K classes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from saligraft import checks
from saligraft.data import Batch
from saligraft.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from saligraft.data.occlude import GRID, hidden_cells, occlude
from saligraft.io.files import name_in_errors, write_atomic
from saligraft.io.locks import locked
from saligraft.pixels import denormalized, normalized
from saligraft.saliency.class_activation import ClassActivation
from saligraft.saliency.rescale import resize_saliency
from saligraft.training.localization import LEAST_IOU, THRESHOLD, box_iou, boxes_in_view, map_boxes
from saligraft.training.results import Scores, batch_sums, total_scores
from saligraft.training.run_folder import DAMAGED, EVALUATION
from saligraft.training.saved_run import SavedRun, load_run
from saligraft.training.setup import in_memory_format

BINS = 15  # of Guo et al. (ICML 2017)


@torch.no_grad()
def evaluate(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], accelerator: Accelerator) -> Scores:
    """Score a network on the batches of all processes together; the modes of its modules are restored afterwards.

    Args:
        network: Maps images (B,C,H,W) to logits (B,K).
        batches: Images (B,C,H,W) and labels (B,), this process's share.
        accelerator: The run's accelerator.

    Returns:
        Mean loss and errors in percent.

    Example:
        >>> from accelerate import Accelerator
        >>> from saligraft.training import evaluate
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
        >>> evaluate(network, [(torch.rand(8, 3, 2, 2), torch.arange(8))], Accelerator(cpu=True))._fields
        ('test_loss', 'top1_error', 'top5_error')
    """
    modes = {module: module.training for module in network.modules()}  # a frozen batch norm has its own
    network.eval()
    try:
        sums = [batch_sums(network(images).float(), labels) for images, labels in batches]
    finally:
        for module, training in modes.items():
            module.training = training
    return total_scores(sums, accelerator)


AnyRun = str | Path | SavedRun


def _load(run: AnyRun) -> SavedRun:
    return run if isinstance(run, SavedRun) else load_run(run)


def _score_variants(run: SavedRun, variants: Callable[[Batch], Iterator[Tensor]], count: int) -> list[Scores]:
    """Score the network on each of `count` variants of the test images, which are read once."""
    sums: list[list[Tensor]] = [[] for _ in range(count)]
    for batch in run.batches():
        for variant_sums, images in zip(sums, variants(batch), strict=True):
            variant_sums.append(batch_sums(run.network(in_memory_format(run.recipe, images)).float(), batch.labels))
    return [total_scores(variant_sums, run.accelerator) for variant_sums in sums]


def evaluate_run(run: AnyRun) -> Scores:
    """Rebuild network and test data of a run folder and test again; equals the run's final numbers.

    Args:
        run: Folder of a finished run, or the loaded run.

    Returns:
        Mean loss and errors in percent.

    Example:
        >>> from saligraft.training import evaluate_run
        >>> evaluate_run("runs/mine").top1_error <= 100
        True
    """
    return _load(run).predictions.scores


@torch.no_grad()
def evaluate_occluded(
    run: AnyRun,
    shares: Sequence[float],
    reference: str | Path | None = None,
) -> list[Scores]:
    """Test a run again for each share of the most salient cells hidden under the data mean (§5.3, Table 7).

    Args:
        run: Folder of a finished run, or the loaded run.
        shares: Shares of hidden cells of an 8 × 8 grid, each in [0, 1].
        reference: A run folder whose network's feature map decides which cells are salient, so that several runs are
            tested on the same images; by default the tested network's own.

    Returns:
        The scores for each share.

    Example:
        >>> from saligraft.training import evaluate_occluded
        >>> len(evaluate_occluded("runs/mine", shares=[0, 0.125, 0.25]))
        3
    """
    counts = [hidden_cells(share) for share in shares]
    run = _load(run)
    source = (run if reference is None else load_run(reference, tested=run)).saliency()

    def occluded(batch: Batch) -> Iterator[Tensor]:
        saliency = resize_saliency(source(batch.images, batch.labels), GRID) if any(counts) else None
        for share, count in zip(shares, counts, strict=True):
            yield batch.images if not count or saliency is None else occlude(batch.images, saliency, share)

    return _score_variants(run, occluded, len(shares))


class Localization(NamedTuple):
    """How well boxes from class activation maps agree with the true ones, in percent of the test images.

    Args:
        accuracy: IoU > 0.5 and the correct class: the paper's "Loc Acc" (Table 10).
        gt_known: IoU > 0.5, regardless of the predicted class.
        class_accuracy: The correct class, regardless of the box.
        mean_iou: Mean IoU, times 100.
        map_size: Height and width of the map before it is resized.
    """

    accuracy: float
    gt_known: float
    class_accuracy: float
    mean_iou: float
    map_size: tuple[int, int]


@torch.no_grad()
def evaluate_localization(run: AnyRun, *, threshold: float = THRESHOLD) -> Localization:
    """Localise objects by class activation maps, as in appendix A, Table 10; see `saligraft.training.localization`.

    The map is that of the label's class: where the prediction is right, which alone counts for the accuracy, that is
    the predicted class, and for GT-known localisation the class is given.

    Args:
        run: Folder of a finished run on data with boxes, or the loaded run.
        threshold: Share of the map's maximum above which pixels belong to the object.

    Returns:
        Accuracies and mean IoU in percent, and the size of the map.

    Example:
        >>> from saligraft.training import evaluate_localization
        >>> 0 <= evaluate_localization("runs/mine").mean_iou <= 100
        True
    """
    checks.probability("threshold", threshold)
    run = _load(run)
    if run.data.boxes is None:
        raise ValueError(
            f"localization needs data with boxes, such as shapes, cub or tiny-imagenet, got {run.data.name}"
        )
    source = ClassActivation(run.network, negative="shift")
    rows = []
    size = run.data.image_shape[1:]
    for batch in run.batches():
        maps = source(batch.images, batch.labels)
        true = boxes_in_view(run.data.boxes[batch.index.cpu()], batch.geometry, size)
        rows.append((batch.index.cpu(), box_iou(map_boxes(maps, size, threshold), true)))
    (iou,) = run.gather(rows)
    right = run.predictions.predicted == run.predictions.labels
    located = iou > LEAST_IOU
    accuracy, gt_known, classes, mean = (
        100 * part.double().mean().item() for part in (located & right, located, right, iou)
    )
    return Localization(accuracy, gt_known, classes, mean, (maps.shape[1], maps.shape[2]))


class Calibration(NamedTuple):
    """How far confidence is from accuracy.

    Args:
        ece: Expected calibration error in percent: the mean over images of |accuracy − confidence| of their bin.
        mce: The largest such gap of any bin, in percent.
        mean_confidence: Mean confidence in percent.
        accuracy: Accuracy in percent.
        counts: Images in each bin, in ascending order of confidence.
        confidences: Mean confidence of each bin in percent; 0 where it is empty.
        accuracies: Accuracy of each bin in percent; 0 where it is empty.
    """

    ece: float
    mce: float
    mean_confidence: float
    accuracy: float
    counts: tuple[int, ...]
    confidences: tuple[float, ...]
    accuracies: tuple[float, ...]


def calibration(confidence: Tensor, right: Tensor, bins: int = BINS) -> Calibration:
    """Compare confidence with accuracy in bins of equal width, (0, 1/bins], ... (Guo et al., ICML 2017, Eq. 3). Pure.

    Args:
        confidence: Probability of the predicted class (N,).
        right: Whether that class is the true one, (N,) bool.
        bins: Number of bins.

    Returns:
        Errors in percent, and the bins.

    Example:
        >>> from saligraft.training import calibration
        >>> round(calibration(torch.tensor([0.9, 0.9, 0.6]), torch.tensor([True, False, True])).ece, 2)
        40.0
    """
    checks.whole_number("bins", bins, least=1)
    confidence, right = confidence.cpu().double(), right.cpu()
    # Edges belong to the bin below; 0 to the first.
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    place = torch.bucketize(confidence, edges)
    counts = torch.bincount(place, minlength=bins)
    sums = [torch.bincount(place, weights=values.double(), minlength=bins) for values in (confidence, right)]
    means = [100 * total / counts.clamp(min=1) for total in sums]
    gaps = (means[0] - means[1]).abs()
    return Calibration(
        ece=float((gaps * counts).sum() / counts.sum()),
        mce=float(gaps.max()),
        mean_confidence=100 * float(confidence.mean()),
        accuracy=100 * float(right.double().mean()),
        counts=tuple(counts.tolist()),
        confidences=tuple(means[0].tolist()),
        accuracies=tuple(means[1].tolist()),
    )


def evaluate_calibration(run: AnyRun, *, bins: int = BINS) -> Calibration:
    """Compute the expected calibration error of a run on its test images.

    Args:
        run: Folder of a finished run, or the loaded run.
        bins: Number of bins.

    Returns:
        Errors in percent, and the bins.

    Example:
        >>> from saligraft.training import evaluate_calibration
        >>> len(evaluate_calibration("runs/mine", bins=10).counts)
        10
    """
    checks.whole_number("bins", bins, least=1)
    predictions = _load(run).predictions
    return calibration(predictions.confidence, predictions.predicted == predictions.labels, bins)


class ClassErrors(NamedTuple):
    """Errors class by class.

    Args:
        classes: Names.
        confusion: Images of each true class (row) by predicted class (column), (K,K) int64.
    """

    classes: tuple[str, ...]
    confusion: Tensor

    @property
    def counts(self) -> list[int]:
        """Test images of each class."""
        return [int(count) for count in self.confusion.sum(dim=1)]

    @property
    def errors(self) -> list[float | None]:
        """Top-1 error of each class in percent; None for a class without test images."""
        right = self.confusion.diagonal().tolist()
        return [100 * (1 - hits / count) if count else None for hits, count in zip(right, self.counts, strict=True)]


def evaluate_classes(run: AnyRun) -> ClassErrors:
    """Count, for each true class, how often each class is predicted.

    Args:
        run: Folder of a finished run, or the loaded run.

    Returns:
        The confusion matrix and class names.

    Example:
        >>> from saligraft.training import evaluate_classes
        >>> evaluate_classes("runs/mine").confusion.shape
        torch.Size([10, 10])
    """
    run = _load(run)
    predictions, count = run.predictions, len(run.data.classes)
    pairs = torch.bincount(predictions.labels * count + predictions.predicted, minlength=count * count)
    return ClassErrors(run.data.classes, pairs.view(count, count))


class CorruptionErrors(NamedTuple):
    """Errors on corrupted test images.

    Args:
        clean: Top-1 error in percent without corruption.
        errors: Top-1 error of each corruption, in percent at severities 1 to 5.
    """

    clean: float
    errors: dict[str, tuple[float, ...]]

    @property
    def mean(self) -> float:
        """Mean error over corruptions and severities; not relative to another network, as ImageNet-C's mCE is."""
        return sum(sum(errors) / len(errors) for errors in self.errors.values()) / len(self.errors)


@torch.no_grad()
def evaluate_corruptions(run: AnyRun, *, names: Sequence[str] = tuple(CORRUPTIONS)) -> CorruptionErrors:
    """Test a run on corrupted images, every corruption at every severity; the same images for every run.

    Args:
        run: Folder of a finished run, or the loaded run.
        names: Corruptions of `saligraft.data.corruptions.CORRUPTIONS`.

    Returns:
        Errors in percent, without corruption and of each corruption by severity.

    Example:
        >>> from saligraft.training import evaluate_corruptions
        >>> len(evaluate_corruptions("runs/mine", names=["gaussian-noise"]).errors["gaussian-noise"])
        5
    """
    for name in names:
        checks.one_of("corruption", name, tuple(CORRUPTIONS))
    run = _load(run)
    if not run.inputs.normalisation_known:
        raise ValueError(
            f"corruptions need images in [0, 1], but {run.recipe.data.name} returned normalised ones and has no "
            "attributes `mean` and `std`"
        )
    cases = [(name, severity) for name in names for severity in SEVERITIES]
    statistics = run.data.mean, run.data.std

    def corrupted(batch: Batch) -> Iterator[Tensor]:
        pixels = denormalized(batch.images, *statistics).clamp(0, 1)
        for case in cases:
            yield normalized(corrupt(pixels, batch.index, *case), *statistics)

    scores = dict(zip(cases, _score_variants(run, corrupted, len(cases)), strict=True))
    errors = {name: tuple(scores[name, severity].top1_error for severity in SEVERITIES) for name in names}
    return CorruptionErrors(run.predictions.scores.top1_error, errors)


def record_evaluation(folder: str | Path, results: Mapping[str, Any]) -> Path:
    """Add results to evaluation.json, atomically; those of other names stay, also those that others add meanwhile.

    Args:
        folder: Folder of the file.
        results: Results by name, as JSON values.

    Returns:
        The file.

    Example:
        >>> from saligraft.training import record_evaluation
        >>> record_evaluation("runs/mine", {"my-test": {"error": 12.5}}).name
        'evaluation.json'
    """
    path = Path(folder) / EVALUATION
    lock = path.with_name(f".{EVALUATION}.lock")
    with name_in_errors(path):
        path.parent.stat()  # the lock would create a missing folder
    with locked(lock):
        try:
            earlier = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged: delete it to evaluate again") from error
        else:
            write_atomic(path, json.dumps({**earlier, **results}, indent=2, allow_nan=False) + "\n")
        finally:
            with suppress(PermissionError):  # Windows cannot remove an open file
                lock.unlink(missing_ok=True)  # filelock notices, and those that wait lock a new one
    return path
