"""The documents and docstrings are true: their code runs, every parameter is described, and what they name exists."""

import doctest
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import saligraft

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "saligraft"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARKDOWN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CODE_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "```python" in path.read_text(encoding="utf-8")]
# What a page may use without saying where it comes from.
PAGE_NAMES = """
import torch
import saligraft as sg
from saligraft.networks import build_network
model, frozen = (build_network("wrn-10-1", num_classes=10) for _ in range(2))
method, mean, std = sg.SaliencyGrafting(), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
g = torch.Generator().manual_seed(0)
images, labels, index, geometry = torch.rand(8, 3, 32, 32), torch.arange(8), torch.arange(8), None
optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.1), [(images, labels)]
"""
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
PUBLIC_PACKAGES = ("data", "networks", "training")  # of the laboratory
LABORATORY = ("cli", "config", "data", "experiments", "integrations", "networks", "reports", "training")
EXTRAS = ("timm", "lightning", "transformers")
INTEGRATIONS = [name for name in EXTRAS if importlib.util.find_spec(name)]
has_laboratory = importlib.util.find_spec("accelerate") is not None


@pytest.mark.parametrize("code", CODE_BLOCKS, ids=range(len(CODE_BLOCKS)))
def test_code_of_the_readme_runs(code: str) -> None:
    if "torchvision" in code and importlib.util.find_spec("torchvision") is None:
        pytest.skip("this block needs torchvision")
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_code_of_the_pages_runs(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of a page run in order, as one program; those that begin with a file's name are such files, too."""
    blocks = re.findall(r"```(python|toml)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    code = "".join(block for language, block in blocks if language == "python")
    for name in (*EXTRAS, "torchvision", "captum"):
        if f"import {name}" in code or f"from {name}" in code:
            pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    for _, block in blocks:
        if name_line := re.match(r"# (\w+\.(?:py|toml))\n", block):
            Path(name_line[1]).write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    if "runs/mine" in code:
        request.getfixturevalue("finished_run")
    namespace: dict[str, Any] = {}
    exec(PAGE_NAMES, namespace)
    exec(compile(code, page.name, "exec"), namespace)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert pictures, "the site shows the outputs: save the notebook with them"
    assert path.stat().st_size < 300_000
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: path.name)
def test_files_and_tests_named_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), f"{document.name} names {path}"
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
    folders = "|".join(path.name for path in PACKAGE.iterdir() if path.is_dir())
    for path in re.findall(rf"`((?:{folders})/[\w/]+\.py)`", text):
        assert (PACKAGE / path).exists(), f"{document.name} names {path}"
    for name, path in re.findall(r"`(\w+)` in `([\w/]+\.py)`", text):
        code = (PACKAGE / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {name}\b", code, flags=re.MULTILINE), f"{path} has no {name}"


def public_objects() -> dict[str, Any]:
    """Every public class and function, of the laboratory and the integrations too where they are installed."""
    objects = {name: getattr(saligraft, name) for name in saligraft.__all__}
    integrations = [f"integrations.{name}" for name in INTEGRATIONS]
    for package in [*(PUBLIC_PACKAGES if has_laboratory else ()), *integrations]:
        module = importlib.import_module(f"saligraft.{package}")
        objects |= {f"{package}.{name}": getattr(module, name) for name in module.__all__}
    return {name: value for name, value in objects.items() if callable(value)}


def is_only_received(value: Any) -> bool:
    """Whether users receive such objects from functions, or derive from the class, but create none."""
    is_result = hasattr(value, "_fields") or value.__name__ in ("BestOf", "Result", "RunStopped")
    return is_result or inspect.isabstract(value)


def described(docstring: str) -> set[str]:
    """The names in the `Args:` section, for results `Attributes:`, of a docstring in Google style."""
    section = re.search(
        r"^(?:Args|Attributes):\n((?: +.*\n|\n)+)", inspect.cleandoc(docstring) + "\n", flags=re.MULTILINE
    )
    if section is None:
        return set()
    entries = re.findall(r"^ {4}(\S[^:]*):", section[1], flags=re.MULTILINE)
    return {name.strip(" *") for entry in entries for name in re.sub(r"\(.*?\)", "", entry).split(",")}


def test_every_parameter_of_a_public_name_is_described() -> None:
    wrong = {}
    for name, value in public_objects().items():
        # A class describes the parameters of its constructor, dataclass fields included, in its own docstring.
        parameters = set(inspect.signature(value).parameters)
        differences = sorted(parameters ^ described(value.__doc__ or ""))
        if differences:
            wrong[name] = differences
    assert wrong == {}


def test_every_public_name_has_an_example() -> None:
    created = {name: value for name, value in public_objects().items() if not is_only_received(value)}
    assert [name for name, value in created.items() if ">>> " not in (value.__doc__ or "")] == []


@pytest.fixture
def finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run runs/mine of the examples, in the current folder."""
    from saligraft.training import SilentReporter, make_recipe, train

    data = {"name": "shapes", "options": {"size": 16, "per_class": 2}}
    training = {"epochs": 1, "batch_size": 10}
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe({"data": data, "network": {"name": "wrn-10-1"}, "training": training})
    train(recipe, "runs/mine", reporter=SilentReporter())


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(name: str, request: pytest.FixtureRequest) -> None:
    if not has_laboratory and name.split(".")[1] in LABORATORY:
        pytest.skip("needs the extra lab")
    if name.startswith("saligraft.integrations.") and name.split(".")[2] not in INTEGRATIONS:
        pytest.skip("needs the extra of the same name")
    module = importlib.import_module(name)
    if "runs/mine" in inspect.getsource(module) and has_laboratory:
        request.getfixturevalue("finished_run")
    torch.manual_seed(0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(module, extraglobs={"torch": torch, "sg": saligraft}, optionflags=flags)
    assert results.attempted > 0
    assert results.failed == 0


def test_described_names_are_read_from_google_style() -> None:
    docstring = """Do something.

    Args:
        images: Images (B, C, H, W); a colon: in the text does not matter,
            nor does a second line: as here.
        height, width: Of the image.
        labels (Tensor): With a type.
        **options: Passed on.

    Returns:
        result: Something.
    """
    assert described(docstring) == {"images", "height", "width", "labels", "options"}
