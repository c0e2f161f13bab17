"""Weights from a file: safetensors, or a checkpoint of torch, of which only tensors and plain values are unpickled."""

import warnings
from argparse import Namespace
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from saligraft.hooks import is_linear
from saligraft.names import listed
from saligraft.networks.base import PooledNetwork

OPTIONAL = "num_batches_tracked"  # a buffer that weights saved by old versions of torch lack
WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the state dict of a checkpoint
PREFIXES = ("module.", "_orig_mod.", "model.")  # of DDP, torch.compile and many LightningModules, in any order


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


def load_weights_file(network: nn.Module, file: str | Path, setting: str = "network.weights") -> None:
    """Load weights into a network; a head that the file lacks or has for another number of classes stays as it is.

    A warning then says so.

    Args:
        network: Changed in place.
        file: A .safetensors file, the folder of a run, or a state dict saved by torch, also inside a checkpoint under
            "state_dict" or "model", as of timm's script, and of a network that was wrapped by DDP or compiled.
        setting: Setting of the recipe that names the file, for errors.
    """
    file = Path(file)
    file = file / "model.safetensors" if file.is_dir() else file
    if not file.is_file():
        raise ValueError(f"{setting} must be a file of weights, got {file}, which does not exist")
    weights = _read(file)
    own_names = network.state_dict().keys()
    while prefix := next((p for p in PREFIXES if _all_begin(weights, p) and not _all_begin(own_names, p)), None):
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    head = {id(parameter) for parameter in find_head(network)}
    own_head = {name: parameter for name, parameter in network.named_parameters() if id(parameter) in head}
    headless = own_head.keys().isdisjoint(weights)  # as of a self-supervised network
    replaced = [name for name in own_head if name in weights and weights[name].shape != own_head[name].shape]
    saved = {name: len(weights.pop(name)) for name in replaced}
    try:
        missing, unexpected = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # torch lists every tensor of another shape, below a heading
        raise ValueError(f"{file} does not fit the network: {str(error).splitlines()[-1].strip()}") from error
    new = own_head if headless else replaced
    missing = [name for name in missing if name not in new and not name.endswith(OPTIONAL)]
    for names, complaint in ((missing, "lacks"), (unexpected, "holds, unlike the network,")):
        if names:
            raise ValueError(f"{file} does not fit the network: it {complaint} {listed(names, 1)}")
    if saved:
        own = len(own_head[replaced[0]])
        warnings.warn(
            f"the head of {file} has {saved[replaced[0]]} classes, not {own}: a new head is initialised", stacklevel=2
        )
    elif own_head and headless:
        warnings.warn(f"{file} has no head: a new head is initialised", stacklevel=2)


def _all_begin(names: Collection[str], prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) for name in names)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        allowed = getattr(torch.serialization, "safe_globals", nullcontext)  # torch >= 2.5
        with allowed([Namespace]):  # plain data: the arguments that timm's script saves
            weights = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # with pages of torch's advice
        has_objects = "global" in str(error).lower()
        advice = "it holds Python objects, which are not loaded; save the state_dict() of the network alone"
        reason = advice if has_objects else "damaged"
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    except Exception as error:  # damage makes both readers raise almost anything
        raise ValueError(f"{path} cannot be read as weights: {(str(error).splitlines() or ['damaged'])[0]}") from error
    if isinstance(weights, dict):
        weights = next((weights[key] for key in WRAPPERS if isinstance(weights.get(key), dict)), weights)
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path} must hold a state dict, tensors by name, got {type(weights).__name__}")
    return dict(weights)
