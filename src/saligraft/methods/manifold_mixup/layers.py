"""Find the layers at which Manifold Mixup mixes: the ends of a network's first stages.

The network is run once on `meta` tensors, which have shapes and no values: no batch-norm statistic, random state,
gradient or memory of the network itself is touched. Rules, in the order in which they are applied:

1. The network is split into its parts; a part inside which the spatial size changes more than once is split too. So a
   stage that begins with a strided block stays in one piece, and a container of stages does not. A part whose output
   has the size of its input is not split, whatever happens inside.
2. A stage is a sequence of parts that return one spatial size (one number of tokens) and contain at least two weight
   layers; a stem of one convolution is not a stage. A stage ends at its last part.
3. The ends of the first two stages are mixed, but never that of the last stage, as Verma et al. do for Wide ResNet
   (three stages) and for pre-activation ResNet (four).
4. A network with a single size (ViT, Mixer) has no stages: its sequence of equal blocks is divided into three instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from saligraft.hooks import SHOWN_NAMES, exclusive_use, first_tensor, watched
from saligraft.names import listed
from saligraft.saliency.token_maps import ImageShape, image_shape, read_map

INPUT = "input"
STAGES_MIXED = 2
LEAST_WEIGHT_LAYERS = 2  # of a stage
BLOCKS_CUT_INTO = 3

Size = tuple[int, ...]

_layers_by_shape: WeakKeyDictionary[nn.Module, dict[Size, tuple[str, ...]]] = WeakKeyDictionary()


class _Sizes(NamedTuple):
    """Spatial sizes of a module's input and output; None for what is not a map."""

    received: Size | None
    returned: Size | None


_Modules = dict[str, _Sizes]  # the first run of every module, in the order in which they ended


def mixing_layers(network: nn.Module, images: Tensor) -> tuple[str, ...]:
    """Return the names of the layers to mix at, "input" first, for images of this shape; cached per network.

    Args:
        network: the network without wrappers.
        images: (B, C, H, W).
    """
    cached = _layers_by_shape.setdefault(network, {})
    shape = tuple(images.shape[1:])
    if shape not in cached:
        modules = _run_on_meta(network, images)
        ends = _stage_ends(network, modules)[:-1][:STAGES_MIXED] or _block_ends(network, modules)
        if not ends:
            names = listed([repr(name) for name in modules], SHOWN_NAMES)
            raise ValueError(f"layers must be named for this model, in which no stages were found; it has {names}")
        cached[shape] = (INPUT, *ends)
    return cached[shape]


def _run_on_meta(network: nn.Module, images: Tensor) -> _Modules:
    modules: _Modules = {}
    image = image_shape(images)

    def record(name: str, _: nn.Module, arguments: tuple[Any, ...], output: object) -> None:
        sizes = _Sizes(_size(first_tensor(arguments), image), _size(first_tensor(output), image))
        modules.setdefault(name, sizes)

    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    with exclusive_use(network), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with watched(network.named_modules(), record):
                torch.func.functional_call(network, state, (torch.empty_like(images, device="meta"),))
        except Exception as error:
            raise ValueError(
                "layers must be named for this model, such as layers=('input', 'layer1', 'layer2'): it cannot run on "
                f"meta tensors to find its stages ({type(error).__name__}: {str(error).splitlines()[0]})"
            ) from error
    return modules


def _size(tensor: Tensor | None, image: ImageShape) -> Size | None:
    if tensor is None or tensor.ndim < 3 or tensor.shape[0] != image.batch:
        return None
    shape = tuple(int(size) for size in tensor.shape)
    if len(shape) == 3:
        return shape[1:2]
    reading = read_map(shape, image, strict=False)
    return reading.grid if reading is not None else (1, 1) if 1 in shape[2:] else None


def _stage_ends(network: nn.Module, modules: _Modules) -> list[str]:
    parts = [name for name in _open("", network, modules) if modules[name].returned is not None]
    parts.sort(key=list(modules).index)
    stages = [list(stage) for _, stage in groupby(parts, key=lambda name: modules[name].returned)]
    weights = [sum(_weight_layers(network.get_submodule(name)) for name in names) for names in stages]
    return [names[-1] for names, count in zip(stages, weights, strict=True) if count >= LEAST_WEIGHT_LAYERS]


def _open(name: str, module: nn.Module, modules: _Modules) -> Iterator[str]:
    """The parts of a module; those with several size changes inside are split recursively."""
    for child_name, child in _children(name, module, modules):
        if _changes(child_name, child, modules) > 1:
            yield from _open(child_name, child, modules)
        else:
            yield child_name


def _changes(name: str, module: nn.Module, modules: _Modules) -> int:
    """How often the size changes along a module's parts, or inside the one where it changes most."""
    received, returned = modules[name]
    if received is not None and received == returned:
        return 0  # attention and squeeze-and-excitation return to their input size
    children = _children(name, module, modules)
    sizes = [size for size in (received, *(modules[child].returned for child, _ in children)) if size is not None]
    here = sum(before != after for before, after in pairwise(sizes))
    return max([here, *(_changes(child_name, child, modules) for child_name, child in children)])


def _children(name: str, module: nn.Module, modules: _Modules) -> list[tuple[str, nn.Module]]:
    """The parts that ran, in order, including those in lists of modules, which do not run themselves."""
    children = []
    for short, child in module.named_children():
        full = f"{name}.{short}" if name else short
        children += [(full, child)] if full in modules else _children(full, child, modules)
    return sorted(children, key=lambda entry: list(modules).index(entry[0]))


def _block_ends(network: nn.Module, modules: _Modules) -> list[str]:
    """Where to divide a sequence of equal blocks, the longest in the part with most weights, into three."""
    name, module = "", network
    while children := _children(name, module, modules):
        kind = Counter(type(child) for _, child in children).most_common(1)[0][0]
        blocks = [child_name for child_name, child in children if type(child) is kind and _weight_layers(child) > 1]
        if len(blocks) >= BLOCKS_CUT_INTO:
            cuts = [-(-len(blocks) * part // BLOCKS_CUT_INTO) for part in range(1, BLOCKS_CUT_INTO)]
            return [blocks[cut - 1] for cut in cuts]
        name, module = max(children, key=lambda entry: _weight_layers(entry[1]))
    return []


def _weight_layers(module: nn.Module) -> int:
    """Whether a module is a weight layer, such as a convolution; norms, whose weights are vectors, are not."""
    return sum(
        any(weight is not None and weight.ndim > 1 for weight in part._parameters.values()) for part in module.modules()
    )
