"""Compiled models: compile one, run it uncompiled where that is needed, and make compiled code notice a hook.

Compiled code may be anywhere: around the network, around or inside DDP, in place (`model.compile()`), or in a part of
the network.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn

from saligraft.hooks import is_compiled, unwrapped, wrappers_of

Compile = bool | str | Mapping[str, Any]


def compiled_model(model: nn.Module, compile: Compile = True) -> nn.Module:
    """Return the model, compiled as asked. The model itself stays uncompiled.

    Args:
        model: the network, bare or wrapped; one that is compiled already is returned as it is.
        compile: whether to compile, the name of a backend, or keyword arguments of `torch.compile`.

    Example:
        >>> type(compiled_model(nn.Linear(2, 3), "eager")).__name__
        'OptimizedModule'
    """
    if not isinstance(compile, bool | str | Mapping):
        expected = "True, False, the name of a backend or keyword arguments of torch.compile"
        raise TypeError(f"compile must be {expected}, got {type(compile).__name__}")
    if compile is False or any(map(is_compiled, wrappers_of(model))):
        return model
    options = compile if isinstance(compile, Mapping) else {"backend": compile} if isinstance(compile, str) else {}
    # One graph per image size: a dynamic one would round differently in a run that is resumed at another size.
    return cast(nn.Module, torch.compile(model, **{"dynamic": False, **options}))


def without_ddp(model: nn.Module) -> nn.Module:
    """Return the model without DDP and DataParallel, still compiled if `torch.compile` wrapped it.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> without_ddp(nn.DataParallel(network)) is network
        True
    """
    network = unwrapped(model)
    around = next((part for part in wrappers_of(model) if "_orig_mod" in part._modules), None)
    if around is None:
        return network
    # The context compiles whatever it is called with, with the options that the user gave to torch.compile.
    return around if around._modules["_orig_mod"] is network else cast(Any, around).dynamo_ctx(network)


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run all compiled parts of a model as plain Python inside the context; its graph may meet compiled passes.

    Args:
        model: the network, with its wrappers.
    """
    with ExitStack() as stack:
        parts = [part for part in model.modules() if is_compiled(part)]
        if parts:
            # A compiled pass writes batch-norm statistics in place; autograd would then refuse the backward pass of an
            # earlier uncompiled one, which saved them without needing them. It does not check what hooks saved.
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))
        for part in parts:
            name = "forward" if "_orig_mod" in part._modules else "_compiled_call_impl"
            stack.callback(part.__dict__.__setitem__, name, part.__dict__[name])
            part.__dict__[name] = part._modules["_orig_mod"] if name == "forward" else None
        yield


_hooked_kinds: dict[type[nn.Module], type[nn.Module]] = {}  # for the types of layers that were hooked


def _same(value: Any) -> Any:
    return value


@contextmanager
def noticed(layer: nn.Module) -> Iterator[None]:
    """Let compiled code notice that the layer is hooked, and only inside the context.

    Code compiled without hooks does not check for new ones. It always checks the types of modules, so the layer gets
    another one; both versions of the code are kept and reused.
    """
    kind = type(layer)
    if kind not in _hooked_kinds:
        _hooked_kinds[kind] = hooked_kind = types.new_class(kind.__name__, (kind,))
        # Some classes wrap `forward` in every subclass, as Transformers does for checkpointing: not in this one.
        for name in [name for name, value in vars(hooked_kind).items() if callable(value) and name[:2] != "__"]:
            delattr(hooked_kind, name)
    object.__setattr__(layer, "__class__", _hooked_kinds[kind])
    try:
        yield
    finally:
        object.__setattr__(layer, "__class__", kind)
