"""Imports go one way, from the core to the command line, and the core needs torch alone."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import saligraft
from saligraft.import_path import install_command

PACKAGE = Path(saligraft.__file__).parent
# The order of docs/architecture.md: a part imports from its own layer and those above it, never from below.
LAYERS: list[set[str]] = [
    {"batch", "draws", "grafting", "labels", "losses", "maps", "pixels", "checks", "hooks", "compiling", "names"}
    | {"import_path", "io"},
    {"saliency", "masks", "regularizers"},
    {"methods"},
    {"remembering", "step", "steps"},
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
ARCHITECTURE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
CORE = LAYERS[0] - {"io"}


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


def import_graph() -> dict[str, set[str]]:
    """The parts that each part imports, itself left out."""
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        imported = {part for _, part in parts_imported(path.read_text(encoding="utf-8"))}
        graph.setdefault(part_of(path), set()).update(imported - {part_of(path)})
    return graph


def test_parts_of_one_layer_import_each_other_without_a_cycle() -> None:
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' -> '.join(error.args[1])}")


def package_graph() -> dict[str, set[str]]:
    """The packages that each package imports, with the core as one; the entry point `__main__` is left out."""
    graph: dict[str, set[str]] = {}
    for part, imported in import_graph().items():
        package = "core" if part in CORE else part
        names = {"core" if name in CORE else name for name in imported}
        graph.setdefault(package, set()).update(names - {package})
    del graph["__main__"]
    return graph


def reachable(graph: dict[str, set[str]], package: str) -> set[str]:
    """All packages that a package imports, directly or by way of others."""
    return graph[package].union(*(reachable(graph, name) for name in graph[package]))


def test_the_table_of_packages_lists_their_imports() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| ([\w, –]+) \|$", ARCHITECTURE, flags=re.MULTILINE)
    assert {package: set(re.findall(r"\w+", imported)) for package, imported in rows} == package_graph()
    core = re.search(r"\*core\* stands for .*?:\n(.*?)\.\n", ARCHITECTURE)
    assert core is not None
    assert set(re.findall(r"`(\w+)`", core[1])) == CORE


def test_the_picture_of_packages_shows_their_imports() -> None:
    graph = package_graph()
    # An arrow is left out where it follows from others.
    expected = {
        (name, package)
        for package, imported in graph.items()
        for name in imported
        if not any(name in reachable(graph, other) for other in imported)
    }
    picture = re.findall(r"```mermaid\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)[1]
    assert set(re.findall(r"^ +(\w+) --> (\w+)$", picture, flags=re.MULTILINE)) == expected


def test_the_index_names_what_is_defined_in_each_module() -> None:
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| (.+) \|$", ARCHITECTURE, flags=re.MULTILINE)
    missing = []
    for module, names in rows:
        defined = set()
        for node in ast.parse((PACKAGE / module).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined.update(ast.unparse(target) for target in targets)
        missing += [f"{module}: {name}" for name in re.findall(r"`(\w+)`", names) if name not in defined]
    assert rows
    assert missing == []


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


def test_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "saligraft" in str(node.module)]
    names = [(node.module, alias.name) for node in imports for alias in node.names]
    assert sorted(name for _, name in names) == sorted(saligraft.__all__)
    for module, name in names:
        assert getattr(saligraft, name) is getattr(importlib.import_module(str(module)), name)
    assert set(saligraft.__all__) <= set(dir(saligraft))


def test_the_package_loads_its_modules_when_they_are_used() -> None:
    code = """
import sys, saligraft
assert "torch" not in sys.modules
assert saligraft.losses.__name__ == "saligraft.losses"
try:
    saligraft.nothing
except AttributeError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "module 'saligraft' has no attribute 'nothing'\n"


@pytest.mark.parametrize("module", ["training", "config.recipe_file", "reports.run_report", "experiments.demo"])
@pytest.mark.parametrize("missing", ["pydantic", "accelerate"])
def test_the_laboratory_without_its_extra_names_it(module: str, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import saligraft.{module}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = run.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: the laboratory needs {missing}: {install_command('lab')}"


def test_a_package_whose_extra_is_missing_is_not_called_unknown() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import saligraft; saligraft.training"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].startswith("ModuleNotFoundError: the laboratory needs pydantic: ")


def test_one_function_writes_the_commands_that_install_extras() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "saligraft[" in path.read_text(encoding="utf-8")]
    assert files == [PACKAGE / "import_path.py"]
