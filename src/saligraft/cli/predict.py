"""`saligraft predict`: classify images with the network of a finished run."""

import json
from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE...", help="Image files, or folders of them; of any size and mode.", exists=True),
    ],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Classes to show for each image.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Classify images with the network of a finished run.

    Images are prepared as the run's test images were: turned upright by their EXIF tag, resized, cropped at the centre
    and normalised. The training data is not needed.

    Examples:

    [bold]saligraft predict runs/mine cat.jpg dog.png[/bold]   the five most probable classes of each

    [bold]saligraft predict runs/mine photos --top 1[/bold]   all images below a folder

    [bold]saligraft predict runs/mine cat.jpg --json[/bold]   for another program
    """
    from saligraft.config.recipe_file import recipe_of_run

    recipe_of_run(run)  # fail before the slow torch import

    from saligraft.data.files import image_files
    from saligraft.experiments.show import is_own_picture
    from saligraft.training import load_run

    files = [file for path in images for file in image_files(path) if file == path or not is_own_picture(file)]
    if not files:
        folders = ", ".join(map(str, images))
        raise ValueError(f"IMAGE must name images of your own, got only pictures that saligraft wrote, in {folders}")
    answers = load_run(run).predict(files, top=top)
    if as_json:
        rows = [
            {"image": str(file), "predictions": [{"class": name, "probability": share} for name, share in answer]}
            for file, answer in zip(files, answers, strict=True)
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_table(files, answers)


def _print_table(files: list[Path], answers: list[list[tuple[str, float]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("image", style="cyan", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right")
    for file, answer in zip(files, answers, strict=True):
        for place, (name, share) in enumerate(answer):
            style = "bold" if place == 0 else ""
            table.add_row(Text("" if place else str(file)), Text(name, style), Text(f"{100 * share:.1f} %", style))
        table.add_section()
    Console().print(table)
