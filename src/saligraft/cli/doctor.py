"""`saligraft doctor`: what is installed and available, and the command that fixes what is missing."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from saligraft.import_path import install_command
from saligraft.names import SMALL_RECIPES, one_line

NEEDED = ("torch", "torchvision", "accelerate", "pydantic", "typer", "rich", "matplotlib", "pillow", "jinja2",
          "safetensors", "filelock")  # fmt: skip
EXTRAS = {  # module, what it is for, extra
    "timm": ("timm networks and optimisers", "timm"),
    "lightning": ("the Lightning integration", "lightning"),
    "transformers": ("the Trainer integration", "transformers"),
    "onnxscript": ("export to ONNX", "export"),
    "scipy": ("PuzzleMix", "puzzle"),
    "submitit": ("reproduce on Slurm", "slurm"),
}
GOOD, NOTE, BAD = "ok", "–", "broken"


class Finding(NamedTuple):
    """One line of the report.

    Args:
        topic: What was looked at.
        state: `GOOD`, `NOTE` for something optional that is missing, or `BAD`.
        text: What was found.
        fix: The command that fixes it, if there is one.
    """

    topic: str
    state: str
    text: str
    fix: str = ""


def doctor(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for runs, checked for writing.")] = Path(
        "runs"
    ),
) -> None:
    """Show versions, devices, data and caches, and the command that fixes each problem.

    The exit code is 0 unless a required part is broken; missing extras and data sets are not errors.

    Examples:

    [bold]saligraft doctor[/bold]   this installation and the data in ./data

    [bold]saligraft doctor --out /scratch/runs[/bold]   whether runs can be written there
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    findings = [*_versions(), *_devices(), *_data(Path("data")), *_extras(), *_folders(out)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {GOOD: "green", NOTE: "dim", BAD: "bold red"}
    for finding in findings:
        text = f"{finding.text}; fix: {finding.fix}" if finding.fix else finding.text
        table.add_row(finding.topic, Text(finding.state, styles[finding.state]), Text(text))
    Console().print(table)
    broken = [finding.topic for finding in findings if finding.state == BAD]
    if broken:
        raise ValueError(f"broken: {', '.join(broken)}; the table above says how to fix each")


def _versions() -> Iterator[Finding]:
    from saligraft import __version__

    yield Finding("saligraft", GOOD, f"{__version__}, Python {platform.python_version()}, {platform.system()}")
    installed, missing = [], []
    for package in NEEDED:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    yield Finding("packages", GOOD, ", ".join(installed))
    if missing:
        yield Finding("packages", BAD, f"missing: {', '.join(missing)}", install_command("lab"))


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken installation raises almost anything
        yield Finding("torch", BAD, f"cannot be imported: {one_line(error)}", "pip install --force-reinstall torch")
        return
    devices = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("MPS")
    threads = f"CPU, cores: {os.cpu_count()}, threads: {torch.get_num_threads()}"
    yield Finding("devices", GOOD, ", ".join([*devices, threads]) + ("" if devices else "; no GPU"))


def _data(root: Path) -> Iterator[Finding]:
    """Data sets in the default folder, recognised by files that exist once an archive is unpacked."""
    from saligraft.data.download import SOURCES

    present = ["shapes (built in)"]
    absent = []
    for name, recipe in SMALL_RECIPES.items():
        place, fix = root / name, f"saligraft train {recipe} --download --plan"
        if any((place / sign).is_file() for sign in SOURCES[name].signs):
            present.append(name)
        elif place.is_dir() and any(place.iterdir()):
            absent.append(Finding("data", NOTE, f"{name} is partial in {place}", fix))
        else:
            absent.append(Finding("data", NOTE, f"missing: {name}", fix))
    if all((root / "imagenet" / part).is_dir() for part in ("train", "val")):
        present.append("imagenet")
    else:
        reason = (
            f"must be downloaded manually: register at https://image-net.org, put train and val into {root}/imagenet"
        )
        absent.append(Finding("data", NOTE, f"missing: imagenet; {reason}"))
    yield Finding("data", GOOD, f"in {root.resolve()}: {', '.join(present)}")
    yield from absent


def _extras() -> Iterator[Finding]:
    for module, (purpose, extra) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding("extra", NOTE, f"{purpose} needs {module}", install_command(extra))


def _folders(out: Path) -> Iterator[Finding]:
    from saligraft.data.cache import cache_folder

    try:
        cache = cache_folder()
        size = sum(file.stat().st_size for file in cache.glob("*") if file.is_file())
        existing = next(parent for parent in (cache, *cache.parents) if parent.exists())
        writable = os.access(existing, os.W_OK)
        fix = "" if writable else "export SALIGRAFT_CACHE=DIR"
        yield Finding("cache", GOOD if writable else NOTE, f"{cache}, {size / 1e6:,.0f} MB", fix)
    except (OSError, RuntimeError) as error:  # pathlib raises RuntimeError for a user without a home
        yield Finding("cache", NOTE, str(error), "export SALIGRAFT_CACHE=DIR")
    existing = next(parent for parent in (out.absolute(), *out.absolute().parents) if parent.exists())
    if existing.is_dir() and os.access(existing, os.W_OK):
        yield Finding("runs", GOOD, f"{out.absolute()} can be written")
    else:
        yield Finding("runs", BAD, f"{out.absolute()} cannot be written", "choose another folder by --out DIR")
