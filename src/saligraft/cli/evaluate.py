"""`saligraft evaluate`: test the network of a run folder again."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that [cyan]saligraft train[/] wrote.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the run's recipe; may be given many times."
    ),
]


def evaluate(run: RunArgument, settings: SetOption = None) -> None:
    """Test the network of a run folder on its test images, and print the errors.

    Network and data are rebuilt from the run's recipe.toml, the weights read from model.safetensors. The numbers
    equal the final ones of result.json.

    Examples:

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0[/bold]   the final numbers of a run

    [bold]saligraft evaluate runs/shapes-wrn-10-2-seed0 --set data.options.seed=1[/bold]   on other test images
    """
    from saligraft.training import evaluate_run

    scores = evaluate_run(run, settings or ())
    print(f"top-1 error  {scores.top1_error:.2f} %")
    print(f"top-5 error  {scores.top5_error:.2f} %")
    print(f"test loss    {scores.test_loss:.4f}")
