"""`saligraft match-temperature`: temperature and k that graft equally many cells, on a trained run."""

from pathlib import Path
from typing import Annotated

import typer


def match_temperature(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that [cyan]saligraft train[/] wrote.")],
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="T", help="Find the k of this temperature.", show_default="0.2"),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", metavar="CELLS", help="Find the temperature of this k.")] = None,
    grid: Annotated[int, typer.Option("--grid", metavar="CELLS", min=2, help="Cells per side.")] = 8,
    images: Annotated[int, typer.Option("--images", metavar="N", min=1, help="Use at most this many images.")] = 5000,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the run's recipe; may be repeated."
        ),
    ] = None,
) -> None:
    """Solve k for a temperature, or the temperature for k, on the maps of a trained run (§5.4).

    Stochastic selection at temperature T grafts k = E[ΣM] cells on average;
    top-k in the ablation then grafts the same number.

    Examples:

    [bold]saligraft match-temperature runs/cifar100-wrn-10-2-seed0[/bold]   the k of T = 0.2

    [bold]saligraft match-temperature runs/cifar100-wrn-10-2-seed0 --k 6[/bold]   the T of k = 6
    """
    from saligraft.config.recipe_file import load_recipe, recipe_of_run

    if temperature is not None and k is not None:
        raise ValueError(f"give --temperature or --k, not both: got {temperature} and {k}")
    load_recipe(recipe_of_run(run), settings or ())  # a mistake fails before the slow torch import

    from saligraft.training import leave_group
    from saligraft.training.match_temperature import match_temperature as solve

    if temperature is None and k is None:
        temperature = 0.2
    match = solve(run, temperature=temperature, k=k, grid=grid, images=images, overrides=settings or ())
    if not leave_group():
        return
    height, width = match.map_size
    print(f"maps         {match.images:,} training images, {height}x{width} cells, resized to {grid}x{grid}")
    print(f"temperature  {match.temperature:.4g}")
    print(f"cells        {match.cells:.2f} of {grid**2} grafted on average: k = {max(1, round(match.cells))}")
