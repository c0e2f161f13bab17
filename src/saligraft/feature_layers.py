"""Find the layers at which Manifold Mixup mixes: the ends of a network's first stages.

The network is run once on `meta` tensors, which have shapes and no values: no batch-norm statistic, random state,
gradient or memory of the network itself is touched. Rules, in the order in which they are applied:

1. The network is opened into its parts; a part inside which the spatial size changes more than once is opened too.
   So a stage that begins with a strided block stays whole, and a container of stages does not. What gives the size
   that it received is whole, whatever happens inside.
2. A stage is a run of parts that give one spatial size (for tokens: one number of them) and hold at least two layers
   of weights; a stem of one convolution is none. Its last part is where it ends.
3. Mixed are the ends of the first two stages, never that of the last one, as Verma et al. do for Wide ResNet (three
   stages) and for pre-activation ResNet (four).
4. A network of a single size (ViT, Mixer) has no stages: its row of equal blocks is cut into three parts instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from saligraft.saliency.find_layer import first_tensor
from saligraft.saliency.token_maps import ImageShape, image_shape, read_map
from saligraft.threads import exclusive_use

INPUT = "input"
STAGES_MIXED = 2
LEAST_WEIGHT_LAYERS = 2  # of a stage
BLOCKS_CUT_INTO = 3
SHOWN_NAMES = 12

Size = tuple[int, ...]

_found: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[str, ...]]] = WeakKeyDictionary()


class _Run(NamedTuple):
    """What one module received and gave: the spatial sizes, None for what is no map."""

    received: Size | None
    gave: Size | None


def mixing_layers(network: nn.Module, images: Tensor) -> tuple[str, ...]:
    """ "input" and the names of the layers, for images of this shape; found once per network."""
    known = _found.setdefault(network, {})
    shape = tuple(images.shape[1:])
    if shape not in known:
        runs = _watch(network, images)
        ends = _stage_ends(network, runs)
        ends = ends[:-1][:STAGES_MIXED] or _block_ends(network, runs)
        if not ends:
            listed = ", ".join(map(repr, list(runs)[:SHOWN_NAMES]))
            raise ValueError(f"layers must be named for this model, in which no stages were found; it has {listed}")
        known[shape] = (INPUT, *ends)
    return known[shape]


def _watch(network: nn.Module, images: Tensor) -> dict[str, _Run]:
    """Every module's first run, in the order in which they ended."""
    runs: dict[str, _Run] = {}
    image = image_shape(images)
    state = {
        name: torch.empty_like(tensor, device="meta")
        for named in (network.named_parameters, network.named_buffers)
        for name, tensor in named()
    }

    def hook_for(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Any, ...], output: object) -> None:
            runs.setdefault(name, _Run(_size(first_tensor(arguments), image), _size(first_tensor(output), image)))

        return hook

    with ExitStack() as stack:
        stack.enter_context(exclusive_use(network))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for name, module in network.named_modules():
            stack.callback(module.register_forward_hook(hook_for(name)).remove)
        try:
            torch.func.functional_call(network, state, (torch.empty_like(images, device="meta"),))
        except Exception as error:
            raise ValueError(
                "layers must be named for this model, such as layers=('input', 'layer1', 'layer2'): it cannot be run "
                f"without values to find its stages ({type(error).__name__}: {str(error).splitlines()[0]})"
            ) from error
    return runs


def _size(tensor: Tensor | None, image: ImageShape) -> Size | None:
    if tensor is None or tensor.ndim < 3 or tensor.shape[0] != image.batch:
        return None
    shape = tuple(int(size) for size in tensor.shape)
    if len(shape) == 3:
        return shape[1:2]
    reading = read_map(shape, image, strict=False)
    if reading is not None:
        return reading.grid
    return (1, 1) if 1 in shape[2:] else None


def _stage_ends(network: nn.Module, runs: dict[str, _Run]) -> list[str]:
    parts = [name for name in _open("", network, runs) if runs[name].gave is not None]
    parts.sort(key=list(runs).index)
    ends = []
    for _, stage in groupby(parts, key=lambda name: runs[name].gave):
        names = list(stage)
        if sum(_weight_layers(network.get_submodule(name)) for name in names) >= LEAST_WEIGHT_LAYERS:
            ends.append(names[-1])
    return ends


def _open(name: str, module: nn.Module, runs: dict[str, _Run]) -> Iterator[str]:
    """The parts of a module; those with several changes of size inside are opened in turn."""
    for child_name, child in _children(name, module, runs):
        if _changes(child_name, child, runs) > 1:
            yield from _open(child_name, child, runs)
        else:
            yield child_name


def _changes(name: str, module: nn.Module, runs: dict[str, _Run]) -> int:
    """How often the size changes along a module's parts, or inside the one where it changes most."""
    if runs[name].received is not None and runs[name].received == runs[name].gave:
        return 0  # attention and squeezing come back to the size they began with
    children = _children(name, module, runs)
    sizes = [size for size in (runs[name].received, *(runs[child].gave for child, _ in children)) if size is not None]
    here = sum(before != after for before, after in pairwise(sizes))
    return max([here, *(_changes(child_name, child, runs) for child_name, child in children)])


def _children(name: str, module: nn.Module, runs: dict[str, _Run]) -> list[tuple[str, nn.Module]]:
    """The parts that ran, in order; a list of modules, which never runs itself, is looked through."""
    found = []
    for short, child in module.named_children():
        full = f"{name}.{short}" if name else short
        found += [(full, child)] if full in runs else _children(full, child, runs)
    return sorted(found, key=lambda entry: list(runs).index(entry[0]))


def _block_ends(network: nn.Module, runs: dict[str, _Run]) -> list[str]:
    """Where a row of equal blocks, the longest on the way to most of the weights, is cut into three."""
    name, module = "", network
    while children := _children(name, module, runs):
        kind, count = Counter(type(child) for _, child in children).most_common(1)[0]
        blocks = [child_name for child_name, child in children if type(child) is kind and _weight_layers(child) > 1]
        if count >= BLOCKS_CUT_INTO and len(blocks) >= BLOCKS_CUT_INTO:
            cuts = [-(-len(blocks) * part // BLOCKS_CUT_INTO) for part in range(1, BLOCKS_CUT_INTO)]
            return [blocks[cut - 1] for cut in cuts]
        name, module = max(children, key=lambda entry: _weight_layers(entry[1]))
    return []


def _weight_layers(module: nn.Module) -> int:
    """Convolutions, linear layers and the like; norms, whose weights are vectors, do not count."""
    return sum(
        any(weight is not None and weight.ndim > 1 for weight in part._parameters.values()) for part in module.modules()
    )
