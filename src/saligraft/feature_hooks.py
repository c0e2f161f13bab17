"""Change what one layer of a network gives, for the length of one forward pass, by a hook that leaves no trace.

Under gradient checkpointing a layer's output is computed anew in the backward pass, which comes after the context is
left: there the same change must be made again, so that one hook stays on such a layer for as long as the graph of the
forward pass lives, and acts in recomputation alone.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from saligraft.saliency.find_layer import first_tensor, is_compiled, searched

Change = Callable[[Any], Any]


@contextmanager
def changed_output(network: nn.Module, name: str, change: Change) -> Iterator[None]:
    """Inside, the layer called `name` gives `change(output)`; it must run once, in one forward pass."""
    refuse_compiled(network, name)
    layer = network.get_submodule(name)
    entry = _Entry(network, layer, name, change)
    with ExitStack() as stack:
        stack.callback(entry.close)
        stack.callback(layer.register_forward_hook(entry.hook).remove)
        stack.callback(network.register_forward_hook(entry.see_result).remove)
        yield
        if not entry.fired:
            raise RuntimeError(
                f"layer {name!r} did not run in this forward pass, so that nothing was mixed: name layers that do"
            )
        entry.hand_over()


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, inside what DDP, DataParallel or torch.compile wraps around it."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):
            model = inner
        else:
            return model


def refuse_compiled(model: nn.Module, name: str = "") -> None:
    """Compiled code may or may not run a hook set after its compilation: rather an error than a doubtful pass."""
    module, compiled = unwrapped(model), is_compiled(model) or is_compiled(unwrapped(model))
    for part in filter(None, name.split(".")):
        module = module.get_submodule(part)
        compiled = compiled or is_compiled(module)
    if compiled:
        inside = f"layer {name!r} is inside a compiled part of model" if name else "model is compiled"
        raise RuntimeError(
            f"{inside}, where no hook can be relied on: compile only parts below the layers that are mixed"
        )


class _Entry:
    """One change of one layer's output, and what is needed to make it again."""

    def __init__(self, network: nn.Module, layer: nn.Module, name: str, change: Change) -> None:
        self.fired = False
        self.first, self.last = _sequence_number(), math.inf  # of the nodes that this forward pass adds to the graph
        self._network, self._layer, self._name, self.change = network, layer, name, change
        self._graph: Any = None
        self._records = torch.is_grad_enabled()
        self._finish: Callable[[], object] | None = None

    def hook(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if _recomputing() or self._network in searched:
            return output  # the hook that was set for recomputation sees to it; a search is not the one forward pass
        if self.fired:
            raise RuntimeError(f"layer {self._name!r} ran twice within one context, which is for one forward pass")
        if self._records and (not torch.is_grad_enabled() or _inside_checkpoint()):
            self._finish = _change_in_recomputation(self._layer, self)
        self.fired = True
        return self.change(output)

    def see_result(self, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        tensor = first_tensor(output)
        self._graph = None if tensor is None else tensor.grad_fn

    def hand_over(self) -> None:
        """From here on the graph decides how long the change is needed."""
        self.last = _sequence_number()
        if self._finish is not None and self._graph is not None:
            token = _Token()
            weakref.finalize(token, self._finish)
            self._graph.metadata.setdefault("saligraft", []).append(token)
            self._finish = None

    def close(self) -> None:
        self._graph = None
        if self._finish is not None:
            self._finish()


class _Token:
    """Dies with the graph that holds it."""


_entries: weakref.WeakKeyDictionary[nn.Module, list[_Entry]] = weakref.WeakKeyDictionary()


def _change_in_recomputation(layer: nn.Module, entry: _Entry) -> Callable[[], None]:
    """Have the layer's output changed in recomputation, until the function that is given back is called."""
    entries = _entries.setdefault(layer, [])
    entries.append(entry)

    def change_again(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        return entry.change(output) if _recomputing() and _recomputed(entries) is entry else output

    handle = layer.register_forward_hook(change_again)

    def finish() -> None:
        entries.remove(entry)
        handle.remove()

    return finish


def _recomputed(entries: list[_Entry]) -> _Entry:
    """Of several forward passes whose graphs live, the one that the backward pass is at."""
    node = torch._C._current_autograd_node()
    number = math.inf if node is None else node._sequence_nr()
    passes = [entry for entry in entries if entry.first <= number <= entry.last]
    return (passes or entries)[-1]


def _recomputing() -> bool:
    """Whether this runs inside a backward pass; torch.utils.checkpoint asks in the same way."""
    return torch._C._current_graph_task_id() >= 0


def _inside_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back
    return False


def _sequence_number() -> int:
    """Of the next node of the graph: nodes are numbered in the order in which they are made."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).clone().grad_fn
    return 0 if node is None else node._sequence_nr()
