"""Unwrap a model, find a layer, hook it during a pass, and remove the hook, even after an error.

All hooks of the package are set here, and made safe: only one thread at a time may use a network, and a pass can be
made without side effects on the network. Compiled code may skip hooks: `compiling` makes it notice one.
"""

from __future__ import annotations

import copy
import difflib
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SHOWN_NAMES = 12  # an error that lists every module of a large network hides its own first line
Side = Literal["output", "input"]
Mode = Literal["eval", "current"]


def wrappers_of(model: nn.Module) -> list[nn.Module]:
    """List the model and the models inside its wrappers (DDP, DataParallel, torch.compile), the network last."""
    chain = [model]
    while True:
        outer = chain[-1]
        wrapped = isinstance(outer, DistributedDataParallel | nn.DataParallel)
        inner = outer.module if wrapped else dict(outer._modules.items()).get("_orig_mod")  # TorchScript's has no get
        if not isinstance(inner, nn.Module):
            return chain
        chain.append(inner)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside DDP, DataParallel and torch.compile, at any nesting.

    Example:
        >>> network = nn.Linear(2, 3)
        >>> unwrapped(torch.compile(nn.DataParallel(network))) is network
        True
    """
    return wrappers_of(model)[-1]


def find_ddp(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel among a model's wrappers, also inside torch.compile; None without one."""
    return next((part for part in wrappers_of(model) if isinstance(part, DistributedDataParallel)), None)


def layer_name(layer: str | nn.Module, network: nn.Module, also: Iterable[str] = ()) -> str:
    """Return the dotted name of a layer inside the unwrapped network, or raise with names that are close.

    Args:
        layer: a module of the network, or its name, which may carry the prefixes of wrappers ("module.features").
        network: the network without wrappers.
        also: names that the caller accepts besides module names, listed first in the error.
    """
    names: dict[int, str] = {id(module): name for name, module in network.named_modules() if name}
    if isinstance(layer, nn.Module):
        if id(layer) not in names:
            raise ValueError(f"layer must be a module inside model, got a {type(layer).__name__} that is not in it")
        return names[id(layer)]
    if not isinstance(layer, str):
        raise TypeError(f"layer must be a dotted name or a module, got {type(layer).__name__}")
    bare = layer
    while bare.startswith(("module.", "_orig_mod.")) and bare.split(".")[0] not in network._modules:
        bare = bare.split(".", 1)[1]
    modules = {name: module for name, module in network.named_modules(remove_duplicate=False) if name}
    if bare in modules:
        return names[id(modules[bare])]
    close = difflib.get_close_matches(bare, modules, n=SHOWN_NAMES) or list(modules)[:SHOWN_NAMES]
    listed = ", ".join(map(repr, (*also, *close)))
    raise ValueError(f"layer must name a module of model, such as {listed}; got {layer!r}")


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer or a 1 × 1 convolution, and so may be a classifier."""
    return isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1))


def first_tensor(value: object) -> Tensor | None:
    """Return the tensor in a module's input or output: the value itself, or the first in a tuple, list or dict."""
    if isinstance(value, Tensor):
        return value
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return next((tensor for tensor in map(first_tensor, entries) if tensor is not None), None)


def replace_first_tensor(value: Any, tensor: Tensor) -> Any:
    """Return a copy of a module's input or output with another tensor in place of `first_tensor(value)`."""
    if isinstance(value, Tensor):
        return tensor
    if isinstance(value, dict):
        key = next(key for key, entry in value.items() if first_tensor(entry) is not None)
        copied = copy.copy(value)  # of the same class, such as an output of Transformers
        copied[key] = replace_first_tensor(value[key], tensor)
        return copied
    place = next(place for place, entry in enumerate(value) if first_tensor(entry) is not None)
    entries = [*value[:place], replace_first_tensor(value[place], tensor), *value[place + 1 :]]
    return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)


def is_compiled(module: nn.Module) -> bool:
    """Whether calling the module runs compiled code, which may skip hooks set afterwards."""
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def refuse_replicas(model: nn.Module) -> None:
    """Raise an error if a pass of the model would run in DataParallel's replicas: a hook would see parts of a batch."""
    for part in wrappers_of(model):
        if isinstance(part, nn.DataParallel) and len(part.device_ids) > 1:
            raise ValueError(
                "model must be wrapped by DistributedDataParallel (torchrun) where layers are read on several devices, "
                f"got DataParallel on devices {list(part.device_ids)}"
            )


def refuse_compiled(model: nn.Module, layer: str | None = None) -> None:
    """Raise an error if the model, or a part that contains the named layer, is compiled: its hook might not run."""
    chain = wrappers_of(model)
    for part in (layer or "").split("."):
        chain.append(chain[-1].get_submodule(part))  # "" is the module itself
    if any(map(is_compiled, chain)):
        inside = f"layer {layer!r} is inside a compiled part of model" if layer else "model is compiled"
        raise RuntimeError(
            f"{inside}, where hooks are not reliable: pass the uncompiled model, or compile only parts below the layer"
        )


@contextmanager
def hooked(layer: nn.Module, hook: Callable[..., Any], side: Side = "output") -> Iterator[None]:
    """Call a forward hook, or a pre-hook for ``side="input"``, whenever the layer runs inside the context."""
    table = layer._forward_hooks if side == "output" else layer._forward_pre_hooks
    # `register_forward_hook` uses a new key every time; a stable key lets compiled code be reused.
    table[id(hook)] = hook
    try:
        yield
    finally:
        table.pop(id(hook), None)


@contextmanager
def watched(
    modules: Iterable[tuple[str, nn.Module]], watcher: Callable[..., None], side: Side = "output"
) -> Iterator[None]:
    """Call ``watcher(name, module, arguments, output)``, or without output for inputs, when any of the modules runs."""
    with ExitStack() as stack:
        for name, module in modules:
            stack.enter_context(hooked(module, partial(watcher, name), side))
        yield


searching: set[nn.Module] = set()  # networks in a pass that only searches for a layer


@contextmanager
def changed_output(network: nn.Module, layer: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace what a layer returns in one forward pass, in which it must run exactly once.

    Args:
        network: the network without wrappers.
        layer: the name of the layer.
        change: function of the layer's output that returns the new one.
    """
    refuse_compiled(network, layer)
    calls: list[str] = []
    with_gradient = torch.is_grad_enabled()

    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if network in searching:
            return None
        if _is_recomputed(with_gradient):
            raise RuntimeError(
                f"gradient checkpointing around a mixed layer is not supported: {layer!r} would be recomputed unmixed "
                "in the backward pass (torch.no_grad() inside the context looks the same)"
            )
        if calls:
            raise RuntimeError(f"layer {layer!r} ran twice within one context, which is for one forward pass")
        calls.append(layer)
        return change(output)

    with hooked(network.get_submodule(layer), hook):
        yield
    if not calls:
        raise RuntimeError(
            f"layer {layer!r} did not run in this forward pass, so nothing was mixed: name layers that do"
        )


def _is_recomputed(with_gradient: bool) -> bool:
    """Whether gradient checkpointing recomputes the running layer: now, in a backward pass, or later."""
    if torch._C._current_graph_task_id() >= 0 or (with_gradient and not torch.is_grad_enabled()):
        return True  # the second is reentrant checkpointing, which runs the forward pass without gradient
    # Non-reentrant checkpointing sets hooks for saved tensors. Older torch (2.4) cannot report them; there the backward
    # pass fails with a CheckpointError, since the recomputation saves fewer tensors than the mixed pass.
    ask = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    pack = (ask(False) or (None,))[0]
    return getattr(pack, "__module__", None) == "torch.utils.checkpoint"


_users: dict[nn.Module, int] = {}  # the thread that uses each module
_lock = threading.Lock()


@contextmanager
def exclusive_use(model: nn.Module) -> Iterator[None]:
    """Keep other threads from using the model inside: hooks and mode changes would corrupt their passes.

    A second thread gets a RuntimeError; the same thread may enter again. Every module is claimed, so a model, its
    wrappers, and other models that share modules with it count as one.
    """
    thread = threading.get_ident()
    claimed: list[nn.Module] = []
    try:
        if _users.get(model) != thread:
            with _lock:
                parts = list(model.modules())
                if any(_users.get(part, thread) != thread for part in parts):
                    raise RuntimeError(
                        f"model must be used by one thread at a time, got a {type(model).__name__} that another thread "
                        "is using: give each thread a copy (copy.deepcopy) or a lock"
                    )
                claimed = [part for part in parts if part not in _users]
                _users.update(dict.fromkeys(claimed, thread))
        yield
    finally:
        for part in claimed:
            del _users[part]


@contextmanager
def without_trace(network: nn.Module, images: Tensor, mode: Mode) -> Iterator[None]:
    """Restore the network's mode and buffers, and torch's and Python's random states, on leaving.

    Buffers are replaced by copies, not restored by writing into them: the backward pass of an earlier graph may still
    need the originals unchanged.

    Args:
        network: the network without wrappers.
        images: its input; their device's random state is restored.
        mode: "eval" for evaluation mode, "current" to keep each module's mode.
    """
    # The CPU is always included; `meta` has no random state, and torch 2.4 raises an error for it.
    devices = [] if images.device.type in ("cpu", "meta") else [images.device]
    kind = devices[0].type if devices else "cuda"  # torch's default
    with exclusive_use(network), torch.random.fork_rng(devices, device_type=kind):
        modules = list(network.modules())
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
            raise TypeError(
                "model must be Python code where maps are computed, got TorchScript, whose modules run no hooks: pass "
                "the model that was scripted or traced"
            )
        kept: list[tuple[bool, dict[str, Any]]] = [(module.training, dict(module._buffers)) for module in modules]
        state = random.getstate()
        try:
            for module, (_, buffers) in zip(modules, kept, strict=True):
                module.training &= mode == "current"  # not .eval() and .train(), which some networks override
                module._buffers.update({name: value.clone() for name, value in buffers.items() if value is not None})
            yield
        finally:
            random.setstate(state)
            torch.clear_autocast_cache()  # older torch (2.4) would reuse weights cast here, which have no gradient
            for module, (training, buffers) in zip(modules, kept, strict=True):
                module.training = training
                module._buffers.clear()
                module._buffers.update(buffers)


@contextmanager
def isolated(model: nn.Module, images: Tensor) -> Iterator[None]:
    """`without_trace` for arbitrary user code: gradients, hooks, grad mode and NumPy's random state are restored too.

    Inside, parameters have no `.grad`, so that a backward pass there does not add to the gradients outside.

    Args:
        model: the model, with its wrappers.
        images: its input; their device's random state is restored.
    """
    tables = [
        (table, dict(table))
        for module in model.modules()
        for name, table in vars(module).items()
        if name.endswith("_hooks") and isinstance(table, dict)
    ]
    parameters = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.parameters()]
    numpy = sys.modules.get("numpy")  # not a dependency
    state = None if numpy is None else numpy.random.get_state()
    with without_trace(model, images, "current"), torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            for parameter, _, _ in parameters:
                parameter.grad = None
            yield
        finally:
            if numpy is not None:
                numpy.random.set_state(state)
            for table, hooks in tables:
                table.clear()
                table.update(hooks)
            for parameter, gradient, requires_grad in parameters:
                parameter.grad = gradient
                parameter.requires_grad_(requires_grad)
