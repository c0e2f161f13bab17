"""What is published: one version, and a wheel and an sdist that install without anything but torch."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import saligraft

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "saligraft"

pytest.importorskip("hatchling")


def python(*arguments: str, path: Path | None = None, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python, with `path` instead of this checkout where it is given."""
    variables = {**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=folder)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dist")
    built = python("-m", "hatchling", "build", "-d", str(folder))
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_the_version_stands_in_one_place() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [saligraft.__version__]


def test_the_archives_hold_every_file_of_the_package(archives: tuple[Path, Path]) -> None:
    wheel, sdist = archives
    assert wheel.name == f"saligraft-{saligraft.__version__}-py3-none-any.whl"
    files = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    expected = {name for name in files if "__pycache__" not in name}
    assert any(name.startswith("saligraft/recipes/") for name in expected)
    assert any(name.startswith("saligraft/reports/templates/") for name in expected)
    with zipfile.ZipFile(wheel) as archive:
        assert expected <= set(archive.namelist())
    with tarfile.open(sdist) as archive:
        stored = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in expected} | {"README.md", "LICENSE", "tests/test_release.py"} <= stored


def install(archive: Path, folder: Path) -> None:
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    installed = python("-m", "pip", "install", *options, "--target", str(folder), str(archive))
    assert installed.returncode == 0, installed.stderr


def test_the_installed_wheel_has_the_command(archives: tuple[Path, Path], tmp_path: Path) -> None:
    install(archives[0], tmp_path)
    done = python(str(tmp_path / "bin" / "saligraft"), "--version", path=tmp_path, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"saligraft {saligraft.__version__}\n"), done.stderr


def test_the_installed_sdist_can_be_imported(archives: tuple[Path, Path], tmp_path: Path) -> None:
    install(archives[1], tmp_path)
    done = python("-c", "import saligraft; print(saligraft.__file__)", path=tmp_path, folder=tmp_path)
    assert done.stdout.strip() == str(tmp_path / "saligraft" / "__init__.py")


def test_the_core_alone_names_the_extra_of_the_command_line() -> None:
    without_typer = "import sys; sys.modules['typer'] = None; from saligraft.__main__ import main; main()"
    done = python("-c", without_typer)
    expected = (2, "", "The command line needs `pip install 'saligraft[lab]'` (from a clone: pip install '.[lab]')\n")
    assert (done.returncode, done.stdout, done.stderr) == expected
