"""`saligraft doctor`: what is found, what is missing with its fix, and the exit code."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import saligraft
from saligraft.cli import doctor, run
from saligraft.config.recipe_file import load_recipe
from saligraft.data.download import SOURCES
from saligraft.names import SMALL_RECIPES


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_sound_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SALIGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    for name, file in (("cub", "CUB_200_2011/images.txt"), ("cifar10", "cifar-10-python.tar.gz.part")):
        (tmp_path / "data" / name / file).parent.mkdir(parents=True)
        (tmp_path / "data" / name / file).write_text("")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "samples.bin").write_bytes(bytes(3_000_000))
    assert run(["doctor"]) == 0
    text = shown(capsys)
    assert f"saligraft ok {saligraft.__version__}, Python 3." in text
    assert "shapes (built in), cub " in text
    partial = "saligraft train cifar100-wrn-10-2 --set data.name=cifar10 --download"
    assert f"cifar10 is partial in data/cifar10; fix: {partial}" in text
    assert "missing: cifar100; fix: saligraft train cifar100-wrn-10-2 --download" in text
    assert "missing: imagenet; must be downloaded manually" in text
    assert "cache, 3 MB" in text
    assert not (tmp_path / "runs").exists()


def test_the_recipe_of_each_data_set_can_be_pasted() -> None:
    assert {*SMALL_RECIPES} == {name for name in SOURCES if not name.endswith("-v0.02")}
    for data, words in SMALL_RECIPES.items():
        name, _, setting = words.partition(" --set ")
        assert load_recipe(name, [setting] if setting else []).data.name == data


def test_missing_extras_are_no_error_and_missing_packages_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setitem(doctor.__globals__["EXTRAS"], "no_such_module", ("nothing", "puzzle"))
    assert run(["doctor"]) == 0
    assert "extra – nothing needs no_such_module; fix: `pip install 'saligraft[puzzle]'` (from a clone: " in shown(
        capsys
    )

    def version(package: str) -> str:
        if package == "safetensors":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setitem(doctor.__globals__, "version", version)
    assert run(["doctor"]) == 2
    captured = capsys.readouterr()
    assert "missing: safetensors; fix: `pip install 'saligraft[lab]'`" in " ".join(captured.out.split())
    assert captured.err == "saligraft: error: broken: packages; the table above says how to fix each\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["doctor", "--out", str(tmp_path / "file" / "runs")]) == 2
    assert "broken" in shown(capsys)
