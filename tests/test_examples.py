"""The examples in the docstrings of the public names run and show what they say."""

import doctest
import importlib

import pytest

import saligraft

MODULES = sorted({getattr(saligraft, name).__module__ for name in saligraft.__all__ if name != "SALIENCY_SOURCES"})


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    if "augmix" in name or "training_step" in name:
        pytest.importorskip("torchvision")
    if "puzzlemix" in name:
        pytest.importorskip("scipy")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
