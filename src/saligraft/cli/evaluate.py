"""`saligraft evaluate`: re-evaluate a run with the metrics used to compare mixing methods."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from saligraft.experiments.label_truth import LabelTruth
    from saligraft.training import SavedRun


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that [cyan]saligraft train[/] wrote.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the run's recipe; may be repeated."
        ),
    ] = None,
    occlude: Annotated[
        list[float] | None,
        typer.Option(
            "--occlude",
            metavar="PERCENT",
            help="Also test with this percentage of an 8 x 8 grid hidden, the most salient cells first; "
            "may be repeated.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            "--reference", metavar="RUN", help="Hide what is salient to the network of this run, not the tested one."
        ),
    ] = None,
    localization: Annotated[
        bool, typer.Option("--localization", help="Compare boxes from class activation maps with the true ones.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Expected calibration error, and reliability.png.")
    ] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Errors under twelve corruptions at five severities.")
    ] = False,
    classes: Annotated[
        bool, typer.Option("--classes", help="Error of each class, and confusion.csv and confusion.png.")
    ] = False,
    label_truth: Annotated[
        bool,
        typer.Option("--label-truth", help="Compare labels of mixing methods with how much of each object is visible."),
    ] = False,
    through_training: Annotated[
        bool,
        typer.Option("--through-training", help="With --label-truth: also after each epoch whose checkpoint is kept."),
    ] = False,
    predictions: Annotated[
        Path | None, typer.Option("--predictions", metavar="FILE", help="Write every prediction to this CSV file.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for evaluation.json and pictures.", show_default="the run folder"),
    ] = None,
) -> None:
    """Test the network of a run folder on its test images, and print the errors.

    Network and data are rebuilt from the run's recipe.toml, with the weights of model.safetensors. The numbers
    equal the final ones of result.json. Further evaluations are also written to evaluation.json in the run folder.

    Examples:

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0[/bold]   the final numbers of a run

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0 --set data.options.seed=1[/bold]   on other test images

    [bold]saligraft evaluate runs/tiny --occlude 12.5 --occlude 25[/bold]   with salient regions hidden, as in Table 7

    [bold]saligraft evaluate runs/cub --localization[/bold]   weakly supervised localisation, as in Table 10

    [bold]saligraft evaluate runs/tiny --calibration --corruptions --classes --predictions tiny.csv[/bold]   several
    """
    from saligraft.config.recipe_file import load_recipe, recipe_of_run
    from saligraft.io.files import check_place

    if reference is not None and not occlude:
        raise ValueError(f"--reference needs --occlude; got {reference}")
    if through_training and not label_truth:
        raise ValueError("--through-training needs --label-truth")
    for percent in occlude or []:
        if not 0 <= percent <= 100:
            raise ValueError(f"--occlude must lie in [0, 100], got {percent:g}")
    if out is not None:
        check_place("--out", out, folder=True)
    if predictions is not None:
        check_place("--predictions", predictions, folder=False)
    load_recipe(recipe_of_run(run), settings or ())  # a mistake fails before the slow torch import

    from saligraft.reports.evaluation import write_predictions
    from saligraft.training import SavedRun, leave_group, load_run, record_evaluation

    saved = load_run(run, settings or [])
    requested: dict[Callable[[SavedRun], _Part], bool] = {
        _scores: not occlude,
        partial(_occlusion, percents=occlude or [], reference=reference): bool(occlude),
        # What may refuse the data comes before what takes long.
        _localization: localization,
        partial(_label_truth, through_training=through_training): label_truth,
        _calibration: calibration,
        _classes: classes,
        _corruptions: corruptions,
    }
    parts = [evaluation(saved) for evaluation, is_requested in requested.items() if is_requested]
    if predictions is not None:
        all_predictions = saved.predictions
    if not leave_group():
        return
    folder = out or run
    folder.mkdir(parents=True, exist_ok=True)
    print("\n\n".join(part.text for part in parts))
    for part in parts:
        for name, write in part.files.items():
            print(write(folder / name))
    if predictions is not None:
        print(write_predictions(all_predictions, saved.data.classes, predictions))
    results = {part.name: {**part.values, "set": settings or []} for part in parts if part.name}
    if results:
        record_evaluation(folder, results)


class _Part(NamedTuple):
    """What one evaluation prints, writes to evaluation.json under its name, and writes to files of its own."""

    text: str
    name: str = ""
    values: Mapping[str, Any] = MappingProxyType({})
    files: Mapping[str, Callable[[Path], Path]] = MappingProxyType({})


def _scores(run: "SavedRun") -> _Part:
    from saligraft.training import evaluate_run
    from saligraft.training.results import has_top5

    scores = evaluate_run(run)
    top5 = f"top-5 error  {scores.top5_error:.2f} %\n" if has_top5(len(run.data.classes)) else ""
    return _Part(f"top-1 error  {scores.top1_error:.2f} %\n{top5}test loss    {scores.test_loss:.4f}")


def _occlusion(run: "SavedRun", percents: list[float], reference: Path | None) -> _Part:
    from saligraft.data.occlude import GRID, hidden_cells
    from saligraft.training import evaluate_occluded
    from saligraft.training.results import has_top5

    with_top5 = has_top5(len(run.data.classes))
    rows = list(dict.fromkeys([0.0, *percents]))
    scores = evaluate_occluded(run, [percent / 100 for percent in rows], reference=reference)
    lines = [f"hidden   cells  top-1 error{'  top-5 error' if with_top5 else ''}  test loss"]
    for percent, row in zip(rows, scores, strict=True):
        cells = f"{hidden_cells(percent / 100)}/{GRID**2}"
        top5 = f"  {row.top5_error:9.2f} %" if with_top5 else ""
        lines.append(f"{percent:5g} %  {cells:>5}  {row.top1_error:9.2f} %{top5}  {row.test_loss:9.4f}")
    values = {f"{percent:g}": row._asdict() for percent, row in zip(rows, scores, strict=True)}
    return _Part(
        "\n".join(lines), "occlusion", {"percent": values, "reference": None if reference is None else str(reference)}
    )


def _localization(run: "SavedRun") -> _Part:
    from saligraft.training import evaluate_localization

    result = evaluate_localization(run)
    height, width = result.map_size
    text = (
        f"localization accuracy  {result.accuracy:6.2f} %   IoU > 0.5 and class right; map {height} x {width}\n"
        f"GT-known localization  {result.gt_known:6.2f} %   IoU > 0.5\n"
        f"class accuracy         {result.class_accuracy:6.2f} %\n"
        f"mean IoU               {result.mean_iou:6.2f} %"
    )
    return _Part(text, "localization", result._asdict())


def _calibration(run: "SavedRun") -> _Part:
    from saligraft.reports.evaluation import save_reliability
    from saligraft.training import evaluate_calibration
    from saligraft.training.run_folder import RELIABILITY

    result = evaluate_calibration(run)
    text = (
        f"expected calibration error  {result.ece:6.2f} %   {len(result.counts)} bins\n"
        f"maximum calibration error   {result.mce:6.2f} %\n"
        f"mean confidence             {result.mean_confidence:6.2f} %\n"
        f"accuracy                    {result.accuracy:6.2f} %"
    )
    return _Part(text, "calibration", result._asdict(), {RELIABILITY: partial(save_reliability, result)})


def _corruptions(run: "SavedRun") -> _Part:
    from saligraft.training import evaluate_corruptions

    result = evaluate_corruptions(run)
    lines = [f"{'top-1 error in %':17} {'1':>6} {'2':>6} {'3':>6} {'4':>6} {'5':>6}    mean"]
    for name, errors in result.errors.items():
        cells = " ".join(f"{error:6.2f}" for error in errors)
        lines.append(f"{name:17} {cells}  {sum(errors) / len(errors):6.2f}")
    lines.append(f"mean corruption error {result.mean:.2f} %, clean error {result.clean:.2f} %")
    return _Part("\n".join(lines), "corruptions", {"mean": result.mean, **result._asdict()})


def _classes(run: "SavedRun") -> _Part:
    from saligraft.reports.evaluation import save_confusion, write_confusion
    from saligraft.training import evaluate_classes
    from saligraft.training.run_folder import CONFUSION, CONFUSION_TABLE

    result = evaluate_classes(run)
    width = max(map(len, result.classes))
    lines = [f"{'class':{width}}  images   error"]
    rows = zip(result.classes, result.counts, result.errors, strict=True)
    for name, count, error in rows:
        lines.append(f"{name:{width}}  {count:6}  " + ("     -" if error is None else f"{error:6.2f} %"))
    values = {"names": result.classes, "images": result.counts, "errors": result.errors}
    files = {CONFUSION_TABLE: partial(write_confusion, result), CONFUSION: partial(save_confusion, result)}
    return _Part("\n".join(lines), "classes", values, files)


def _label_truth(run: "SavedRun", through_training: bool) -> _Part:
    from saligraft.experiments.label_truth import evaluate_label_truth

    methods = evaluate_label_truth(run)
    values: dict[str, Any] = {"methods": {name: truth._asdict() for name, truth in methods.items()}}
    texts = [
        "label truth: each label against what the mixed image shows of the two objects",
        *_truth_rows(methods),
    ]
    if through_training:
        values["epochs"] = {}
        for epoch, earlier in run.through_training():
            methods = evaluate_label_truth(earlier)
            values["epochs"][str(epoch)] = {name: truth._asdict() for name, truth in methods.items()}
            texts += ["", f"after epoch {epoch}", *_truth_rows(methods)]
    texts += [
        "own: the method's label; area: by area; sal.: calibrated by saliency. Error:",
        "mean absolute, in points. Correlation: of ranks. Unseen: labels that mostly",
        "name an object of which less than 5 % shows. Bits: diversity of chosen cells.",
    ]
    return _Part("\n".join(texts), "label-truth", values)


def _truth_rows(methods: "Mapping[str, LabelTruth]") -> list[str]:
    from saligraft.experiments.label_truth import LABELS

    groups = {"error, points": 1, "correlation": 2, "unseen, %": 1}  # and their decimals
    lines = [
        f"{'':17}  " + "  ".join(f"{group:>17}" for group in groups) + "  bits",
        f"{'method':17}" + f"  {'own':>5} {'area':>5} {'sal.':>5}" * len(groups),
    ]
    for name, truth in methods.items():
        points = {label: 100 * error for label, error in truth.error.items()}
        measured: tuple[Mapping[str, float | None], ...] = (points, truth.rank_correlation, truth.unseen)
        cells = [
            " ".join("    -" if table[label] is None else f"{table[label]:5.{places}f}" for label in LABELS)
            for table, places in zip(measured, groups.values(), strict=True)
        ]
        diversity = "   -" if truth.diversity is None else f"{truth.diversity:.2f}"
        lines.append("  ".join([f"{name:17}", *cells, diversity]))
    return lines
