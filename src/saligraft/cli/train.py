"""`saligraft train`: one run from a recipe."""

from pathlib import Path
from typing import Annotated

import typer

RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe file, or a name of [cyan]saligraft list recipes[/]."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one setting; may be given many times. See [cyan]saligraft list settings[/].",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Run folder to write.", show_default="runs/RECIPE-seedN"),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="Seed.", show_default="the recipe's")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace a run that stands in the folder.")]


def train(
    recipe: RecipeArgument,
    settings: SetOption = None,
    out: OutOption = None,
    seed: SeedOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Train a network as a recipe says, and write a run folder.

    The folder holds recipe.toml (complete, can be trained again), metrics.jsonl, result.json, timing.jsonl,
    model.safetensors and report.html. The same recipe and seed give the same numbers, bit for bit, on the same
    machine and thread count.

    Examples:

    [bold]saligraft train shapes-wrn-10-2-saliency-grafting[/bold]   a bundled recipe

    [bold]saligraft train shapes-wrn-10-2 --seed 1 --set training.epochs=5 --out runs/short[/bold]   a shorter run

    [bold]saligraft train shapes-wrn-10-2 --set method.name=cutmix --set method.options.probability=0.5[/bold]
    another method, with an option of its own

    [bold]saligraft train shapes-wrn-10-2 --set method.name=cutout+mixup[/bold]   two methods, one after the other

    [bold]saligraft train runs/short/recipe.toml --out runs/again[/bold]   a run once more, from its own recipe

    [bold]torchrun --nproc-per-node 2 -m saligraft train shapes-wrn-10-2[/bold]   two processes
    """
    import torch

    from saligraft import training

    chosen = training.load_recipe(recipe, settings or (), seed=seed)
    folder = out or Path("runs") / f"{Path(recipe).stem}-seed{chosen.seed}"
    try:
        result = training.train(chosen, folder, overwrite=overwrite)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            is_first = torch.distributed.get_rank() == 0
            torch.distributed.destroy_process_group()
        else:
            is_first = True
    if is_first:
        _print_result(result.summary, folder)


def _print_result(summary: dict[str, dict[str, float]], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("error (%)", box=None, pad_edge=False, header_style="bold")
    for column in ("best", "mean of last 10", "final"):
        table.add_column(column, justify="right")
    for title, name in (("top-1", "top1_error"), ("top-5", "top5_error")):
        errors = summary[name]
        table.add_row(title, *(f"{errors[kind]:.2f}" for kind in ("best", "last10_mean", "final")))
    Console().print(table)
    print(f"run folder: {folder}\nreport:     {folder / 'report.html'}")
