"""Networks by name: `build_network("wrn-28-10", num_classes=100)`.

A name is a pattern of `NETWORKS` with its blanks filled in. Any model of torchvision and timm resolves too.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from saligraft.networks.wide_resnet import WideBlock, WideResNet

__all__ = ["NETWORKS", "WideBlock", "WideResNet", "build_network"]


def _wide_resnet(name: str, num_classes: int, in_channels: int, **options: Any) -> nn.Module:
    """Zagoruyko & Komodakis 2016; depth 6n + 4, option `dropout`."""
    shape = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if shape is None:
        raise ValueError(f'a Wide ResNet is named "wrn-DEPTH-WIDTH", such as "wrn-28-10", got "{name}"')
    known = [p for p in inspect.signature(WideResNet).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = options.keys() - {p.name for p in known}
    if unknown:
        valid = ", ".join(p.name for p in known)
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}; valid: {valid}")
    depth, width = (int(group) for group in shape.groups())
    return WideResNet(depth, width, num_classes, in_channels, **options)


def _torchvision_network(name: str, num_classes: int, in_channels: int, **options: Any) -> nn.Module:
    """Any torchvision classifier, for 3 channels, randomly initialised."""
    library = _import_library("torchvision.models", name)
    model_name = name.removeprefix("torchvision:")
    _check_model_name(name, model_name, library.list_models(module=library))
    if in_channels != 3:
        raise ValueError(
            f"in_channels must be 3 for {name}: torchvision's models take RGB, got {in_channels}; "
            'timm\'s ("timm:NAME") take any number'
        )
    network: nn.Module = library.get_model(model_name, weights=None, num_classes=num_classes, **options)
    return network


def _timm_network(name: str, num_classes: int, in_channels: int, **options: Any) -> nn.Module:
    """Any timm classifier, randomly initialised unless `pretrained = true`."""
    library = _import_library("timm", name)
    model_name = name.removeprefix("timm:")
    _check_model_name(name, model_name, library.list_models())
    network: nn.Module = library.create_model(
        model_name, num_classes=num_classes, in_chans=in_channels, **options
    )
    return network


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "wrn-DEPTH-WIDTH": _wide_resnet,
    "torchvision:NAME": _torchvision_network,
    "timm:NAME": _timm_network,
}


def build_network(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """A randomly initialised network that maps (B, in_channels, H, W) to logits (B, num_classes).

    The initial weights come from torch's global generator: seed it to repeat them.
    """
    for pattern, build in NETWORKS.items():
        family = re.match(r"[a-z]+[-:]", pattern)
        if family is not None and name.startswith(family.group()):
            return build(name, num_classes, in_channels, **options)
    valid = ", ".join(f'"{pattern}"' for pattern in NETWORKS)
    raise ValueError(f'unknown network "{name}"; valid: {valid}, such as "wrn-28-10" or "timm:convnext_tiny"')


def _import_library(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(f'network "{name}" needs {package}: pip install {package}') from error


def _check_model_name(name: str, model_name: str, valid: list[str]) -> None:
    # timm lists architectures; a tag after a dot picks pretrained weights of one.
    if model_name.partition(".")[0] in valid:
        return
    package = name.partition(":")[0]
    close = difflib.get_close_matches(model_name, valid, n=5, cutoff=0.5)
    hint = f"; did you mean {', '.join(close)}?" if close else f"; {package} lists {len(valid)} models"
    raise ValueError(f'unknown network "{name}"{hint}')
