"""`saligraft evaluate`: test the network of a run folder again, optionally with its most salient regions hidden."""

from pathlib import Path
from typing import Annotated

import typer


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
) -> None:
    """Test the network of a run folder on its test images, and print the errors.

    Network and data are rebuilt from the run's recipe.toml, with the weights of model.safetensors. The numbers
    equal the final ones of result.json.

    Examples:

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0[/bold]   the final numbers of a run

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0 --set data.options.seed=1[/bold]   on other test images

    [bold]saligraft evaluate runs/tiny --occlude 12.5 --occlude 25[/bold]   with salient regions hidden, as in Table 7
    """
    from saligraft.training import evaluate_run, leave_group

    if occlude:
        _print_occluded(run, occlude, settings or [], reference)
        return
    if reference is not None:
        raise ValueError(f"--reference needs --occlude; got {reference}")
    scores = evaluate_run(run, settings or ())
    if not leave_group():
        return
    print(f"top-1 error  {scores.top1_error:.2f} %")
    print(f"top-5 error  {scores.top5_error:.2f} %")
    print(f"test loss    {scores.test_loss:.4f}")


def _print_occluded(run: Path, percents: list[float], settings: list[str], reference: Path | None) -> None:
    from saligraft.data.occlude import GRID, hidden_cells
    from saligraft.training import evaluate_occluded, leave_group

    for percent in percents:
        if not 0 <= percent <= 100:
            raise ValueError(f"--occlude must lie in [0, 100], got {percent:g}")
    rows = list(dict.fromkeys([0.0, *percents]))
    all_scores = evaluate_occluded(run, [percent / 100 for percent in rows], settings, reference)
    if not leave_group():
        return
    print("hidden   cells  top-1 error  top-5 error  test loss")
    for percent, scores in zip(rows, all_scores, strict=True):
        cells = f"{hidden_cells(percent / 100)}/{GRID**2}"
        print(
            f"{percent:5g} %  {cells:>5}  {scores.top1_error:9.2f} %  {scores.top5_error:9.2f} %  "
            f"{scores.test_loss:9.4f}"
        )
