"""The methods of `names.py` with their classes."""

import importlib
import sys
from typing import Any, NamedTuple

from saligraft.import_path import import_object, is_import_path
from saligraft.methods.base import BatchMixer
from saligraft.methods.kinds import FeatureMixer, ImageTransform, StepStrategy
from saligraft.names import METHODS
from saligraft.saliency.base import Passes

KINDS: tuple[type, ...] = (BatchMixer, ImageTransform, FeatureMixer, StepStrategy)


class Entry(NamedTuple):
    """One method.

    Args:
        method: Its class, which says what saliency it uses and whether it trains on originals too.
        title: Its name in prose.
        passes: Forward and backward passes of a training step over a batch, those for saliency maps included.
    """

    method: type[Any]
    title: str
    passes: Passes

    @property
    def purpose(self) -> str:
        """What the method does: the first line of its module, after its name."""
        line = (sys.modules[self.method.__module__].__doc__ or "").partition("\n")[0].partition(": ")[2]
        return line[:1].upper() + line[1:]


def _entry(path: str, title: str, passes: tuple[int, int]) -> Entry:
    module, _, name = path.partition(":")
    return Entry(getattr(importlib.import_module(f"saligraft.methods.{module}"), name), title, Passes(*passes))


REGISTRY: dict[str, Entry] = {name: _entry(*line) for methods in METHODS.values() for name, line in methods.items()}


def find_method(name: str) -> Entry:
    """Return the entry of a method by name, or make one for a class of the user's own code.

    Args:
        name: A name in `REGISTRY`, or the import path "package.module:Name" of a class derived from a kind of method.

    Example:
        >>> find_method("cutmix").title
        'CutMix'
    """
    if not is_import_path(name):
        return REGISTRY[name]
    method = import_object(name, "method")
    if not isinstance(method, type) or not issubclass(method, KINDS):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise ValueError(f"method {name!r} must be a class derived from one of {kinds}, got {method!r}")
    return Entry(method, name, Passes(1, 1))


def methods_of(kind: type[Any]) -> dict[str, type[Any]]:
    """Return the methods of one kind, by name.

    Args:
        kind: `BatchMixer`, `ImageTransform`, `FeatureMixer` or `StepStrategy`.

    Example:
        >>> from saligraft.methods import ImageTransform
        >>> methods_of(ImageTransform)
        {'cutout': <class 'saligraft.methods.cutout.Cutout'>}
    """
    return {name: entry.method for name, entry in REGISTRY.items() if issubclass(entry.method, kind)}
