"""Weights from a file: safetensors, or a checkpoint of torch, of which only tensors and plain values are unpickled."""

import warnings
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from saligraft.hooks import is_linear
from saligraft.networks.base import PooledNetwork

OPTIONAL = "num_batches_tracked"  # a buffer that weights saved by old versions of torch lack
WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the state dict of a checkpoint
PREFIXES = ("module.", "_orig_mod.")  # of DDP's and torch.compile's wrappers, in any order


def find_head(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the layer that gives the logits; none if there is no such layer.

    Args:
        network: timm's classifier is used, our networks' head, otherwise the last linear layer; a 1 × 1 convolution
            counts as linear, as in SqueezeNet. Some of timm's networks have two classifiers.
    """
    if callable(getattr(network, "get_classifier", None)):
        classifier = network.get_classifier()  # type: ignore[operator]
        layers = list(classifier) if isinstance(classifier, tuple | list) else [classifier]
    elif isinstance(network, PooledNetwork):
        layers = [network.head]
    else:
        layers = [module for module in network.modules() if is_linear(module)][-1:]
    return [parameter for layer in layers for parameter in layer.parameters()]


def load_weights_file(network: nn.Module, file: str | Path) -> None:
    """Load weights into a network; a head for another number of classes keeps its own initial ones, with a warning.

    Args:
        network: Changed in place.
        file: A .safetensors file, such as model.safetensors of a run, or a state dict saved by torch, also inside a
            checkpoint under "state_dict" or "model", and of a network that was wrapped by DDP or compiled.
    """
    weights = _read(Path(file))
    own_names = network.state_dict().keys()
    while prefix := next((p for p in PREFIXES if _all_begin(weights, p) and not _all_begin(own_names, p)), None):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    head = {id(parameter) for parameter in find_head(network)}
    replaced = [
        name
        for name, parameter in network.named_parameters()
        if id(parameter) in head and name in weights and weights[name].shape != parameter.shape
    ]
    saved = {name: len(weights.pop(name)) for name in replaced}
    try:
        missing, unexpected = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # torch lists every tensor of another shape, below a heading
        raise ValueError(f"{file} does not fit the network: {str(error).splitlines()[-1].strip()}") from error
    missing = [name for name in missing if name not in replaced and not name.endswith(OPTIONAL)]
    for names, complaint in ((missing, "lacks"), (unexpected, "holds, unlike the network,")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"{file} does not fit the network: it {complaint} {names[0]}{more}")
    if saved:
        own = len(dict(network.named_parameters())[replaced[0]])
        warnings.warn(
            f"the head of {file} has {saved[replaced[0]]} classes, not {own}: a new head is initialised", stacklevel=2
        )


def _all_begin(names: Collection[str], prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) for name in names)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"network.weights must be a file of weights, got {path}, which does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damage makes both readers raise almost anything
        raise ValueError(f"{path} cannot be read as weights: {(str(error).splitlines() or ['damaged'])[0]}") from error
    if isinstance(weights, dict):
        weights = next((weights[key] for key in WRAPPERS if isinstance(weights.get(key), dict)), weights)
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path} must hold a state dict, tensors by name, got {type(weights).__name__}")
    return dict(weights)
