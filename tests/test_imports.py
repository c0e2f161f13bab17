"""Imports go one way, from the core to the command line, and the core needs torch alone."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import saligraft

PACKAGE = Path(saligraft.__file__).parent
# The order of docs/architecture.md: a part imports from its own layer and those above it, never from below.
LAYERS: list[set[str]] = [
    {"batch", "draws", "grafting", "labels", "losses", "maps", "checks", "hooks", "io"},
    {"saliency", "masks", "regularizers"},
    {"methods"},
    {"step", "steps"},
    {"networks", "data"},
    {"config"},
    {"training"},
    {"reports"},
    {"experiments", "integrations"},
    {"cli", "__main__"},
]
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
# The public names are those of the core up to the steps, so `import saligraft` counts as an import of the steps.
PUBLIC = "steps"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part_of(path: Path) -> str:
    """The module or package right below `saligraft` that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def parts_imported(code: str) -> Iterator[tuple[int, str]]:
    """Line and part of every import of the package in code, also inside functions, but not for type checkers alone."""
    nodes: list[ast.AST] = [ast.parse(code)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            nodes.extend(node.orelse)
            continue
        nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "saligraft":
                part = rest.partition(".")[0]
                is_part = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()
                yield node.lineno, part if part and is_part else PUBLIC


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted({part_of(path) for path in MODULES} - LAYER.keys()) == []


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {part}"
        for path in MODULES
        for line, part in parts_imported(path.read_text(encoding="utf-8"))
        if LAYER.get(part, 0) > LAYER.get(part_of(path), len(LAYERS))
    ]
    assert wrong == []


def test_parts_of_one_layer_import_each_other_without_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        imported = {part for _, part in parts_imported(path.read_text(encoding="utf-8"))}
        graph.setdefault(part_of(path), set()).update(imported - {part_of(path)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' -> '.join(error.args[1])}")


def test_imports_are_read_wherever_they_are_written() -> None:
    code = """
import saligraft
import saligraft.masks.salient
from saligraft import checks, SaliencyGrafting
from saligraft.data.loader import crop_and_flip
import torch
if TYPE_CHECKING:
    from saligraft.cli import main
else:
    from saligraft import reports

def function():
    from saligraft.training import train
"""
    parts = [PUBLIC, "masks", "checks", PUBLIC, "data", "reports", "training"]
    assert sorted(parts_imported(code)) == sorted(zip([2, 3, 4, 4, 5, 10, 13], parts, strict=True))


SCRIPT = """
import sys

EXTRAS = {"torchvision", "accelerate", "pydantic", "typer", "rich", "matplotlib", "safetensors", "timm", "PIL"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import torch
import saligraft as sg

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
)
out = sg.GraftingStep(model, sg.SaliencyGrafting())(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 0, 1]))
out.loss.backward()
assert out.mixed is not None
print("fine")
"""


def test_core_works_without_any_extra() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fine", run.stderr


def test_public_names_are_there() -> None:
    for name in saligraft.__all__:
        assert getattr(saligraft, name) is not None
