"""A trained network as one file for other programs: ONNX, or a program of torch.export."""

import copy
import importlib.util
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saligraft.checks import one_of
from saligraft.import_path import install_command
from saligraft.io.files import atomic_path
from saligraft.training.run_folder import METADATA, ONNX, PROGRAM
from saligraft.training.saved_run import SavedRun

FORMATS = {"onnx": ONNX, "torch-export": PROGRAM}
INPUT, OUTPUT = "images", "logits"
TOLERANCE = 1e-4  # of the logits' largest value: other kernels add in another order
BATCHES = (1, 3)  # sizes that the file is run at: neither is the one that it was exported with
JSON_FILE = f"{METADATA}.json"  # inside the file of torch.export


def export_run(run: SavedRun, file_format: str, out: str | Path | None = None) -> tuple[Path, float | None]:
    """Write a run's network to a file that takes batches of any size, and run that file again to compare.

    The input is what `SavedRun.transform` returns. Class names, mean, std and image size are stored as JSON: in ONNX
    in the metadata property "saligraft", in torch.export's file in the extra file "saligraft.json".

    Args:
        run: Finished run, from `load_run`.
        file_format: "onnx" or "torch-export".
        out: The file; by default model.onnx or model.pt2 in the run folder.

    Returns:
        The file, and the largest difference of its logits from the network's; None if nothing can run the file.

    Example:
        >>> from saligraft.training import export_run, load_run
        >>> path, difference = export_run(load_run("runs/mine"), "torch-export")
        >>> path.name, difference < 1e-4
        ('model.pt2', True)
    """
    one_of("format", file_format, FORMATS)
    path = Path(out) if out is not None else run.folder / FORMATS[file_format]
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.parent}")
    facts = {"network": run.recipe.network.name, "data": run.recipe.data.name, **run.inputs._asdict()}
    network = copy.deepcopy(run.network).cpu().to(memory_format=torch.contiguous_format).eval()
    example = torch.rand((2, *run.inputs.image_shape), generator=torch.Generator().manual_seed(0))
    write = _write_onnx if file_format == "onnx" else _write_program
    with atomic_path(path) as aside, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own internals
        write(network, example, json.dumps(facts), aside)
        load = _load_onnx if file_format == "onnx" else _load_program
        program = load(aside)
        difference = None if program is None else _largest_difference(network, program, example)
    return path, difference


def _largest_difference(network: nn.Module, program: Callable[[Tensor], Tensor], example: Tensor) -> float:
    """Compare at other batch sizes than the exported one; raise if its results differ."""
    largest = 0.0
    for size in BATCHES:
        images = torch.rand((size, *example.shape[1:]), generator=torch.Generator().manual_seed(size))
        expected, actual = network(images), program(images)
        difference = float((expected - actual).abs().max())
        if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ValueError(f"the exported network differs from the trained one by {difference:.2g} in its logits")
        largest = max(largest, difference)
    return largest


def _exported(network: nn.Module, example: Tensor) -> Any:
    try:
        return torch.export.export(network, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:  # torch raises many types, with pages of advice
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"torch.export cannot trace {type(network).__name__}: {reason}") from error


def _write_program(network: nn.Module, example: Tensor, facts: str, path: Path) -> None:
    torch.export.save(_exported(network, example), path, extra_files={JSON_FILE: facts})


def _load_program(path: Path) -> Callable[[Tensor], Tensor]:
    program: Callable[[Tensor], Tensor] = torch.export.load(path).module()
    return program


def _write_onnx(network: nn.Module, example: Tensor, facts: str, path: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"ONNX needs {missing[0]}: {install_command('export')}")
    options: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT], "verbose": False}
    program = torch.onnx.export(_exported(network, example), (example,), dynamo=True, **options)
    assert program is not None
    program.model.metadata_props[METADATA] = facts
    program.save(str(path), include_initializers=True, external_data=False)


def _load_onnx(path: Path) -> Callable[[Tensor], Tensor] | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def logits(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return logits
