"""The documents are true: their code runs, and what they name exists."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MARKDOWN = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
CODE_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", CODE_BLOCKS, ids=range(len(CODE_BLOCKS)))
def test_code_of_the_readme_runs(code: str) -> None:
    if "torchvision" in code and importlib.util.find_spec("torchvision") is None:
        pytest.skip("this block needs torchvision")
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("document", MARKDOWN, ids=lambda path: path.name)
def test_files_and_tests_named_in_documents_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (document.parent / link).exists(), f"{document.name} links to {link}"
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), f"{document.name} names {path}"
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {name}"
    for path in re.findall(r"`((?:saliency|masks|methods|networks|data|training)/[\w/]+\.py)`", text):
        assert (ROOT / "src" / "saligraft" / path).exists(), f"{document.name} names {path}"
