"""`saligraft export`: the network of a finished run as a file for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    file_format: Annotated[
        Literal["onnx", "torch-export"],
        typer.Option("--format", metavar="FORMAT", help="onnx, or torch-export for torch's own format."),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write.", show_default="RUN/model.onnx or RUN/model.pt2"),
    ] = None,
) -> None:
    """Export the network of a finished run to ONNX or torch.export.

    The file takes batches of any size of normalised images (B, C, H, W) and gives logits (B, K). Class names, mean, std
    and image size are inside, as JSON. The written file is run again and compared with the network: ONNX by
    onnxruntime, if it is installed.

    Examples:

    [bold]saligraft export runs/mine[/bold]   runs/mine/model.onnx

    [bold]saligraft export runs/mine --format torch-export --out mine.pt2[/bold]   for torch.export.load
    """
    from saligraft.config.recipe_file import recipe_of_run

    recipe_of_run(run)  # fail before the slow torch import

    from saligraft.training import export_run, load_run

    path, difference = export_run(load_run(run), file_format, out)
    print(path)
    if difference is None:
        print("not compared with the network: pip install onnxruntime")
    else:
        print(f"compared with the network: logits differ by at most {difference:.1g}")
