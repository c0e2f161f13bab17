"""Networks by name: `build_network("wrn-28-10", num_classes=100)`.

A name is a pattern of `NETWORKS` with its capitals replaced. Any model of torchvision and timm works too.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch import nn

from saligraft.import_path import call, import_object, is_import_path
from saligraft.names import network_form, suggestion
from saligraft.networks.pyramidnet import PyramidNet
from saligraft.networks.resnet import SmallImageResNet
from saligraft.networks.wide_resnet import WideResNet

__all__ = ["NETWORKS", "PyramidNet", "SmallImageResNet", "WideResNet", "build_network"]

Options = dict[str, Any]


def _wide_resnet(name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options) -> nn.Module:
    """Wide ResNet (Zagoruyko & Komodakis 2016), depth 6n + 4: 10, 16, 28; options `stem_stride`, `dropout`,
    `drop_block`, `variant`.
    """
    return _own_network(WideResNet, name, parts, num_classes, in_channels, options)


def _pyramidnet(name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options) -> nn.Module:
    """PyramidNet (Han et al. 2017), α̃ = ALPHA, depth 6n + 2: 20, 110; from 164 on with bottlenecks, depth 9n + 2: 200;
    options `stem_stride`, `shake_drop`, `shake_level`, `drop_block`, `bottleneck`.
    """
    return _own_network(PyramidNet, name, parts, num_classes, in_channels, options)


def _small_resnet(name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options) -> nn.Module:
    """ResNet (He et al. 2016) for 32 to 64 px, with a 3×3 stem: depth 10, 18, 34; options `width`, `stem_stride`."""
    return _own_network(SmallImageResNet, name, parts, num_classes, in_channels, options)


def _own_network(
    network: type[nn.Module], name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options
) -> nn.Module:
    valid = [p.name for p in inspect.signature(network).parameters.values() if p.kind is p.KEYWORD_ONLY]
    _check_options(name, options, valid)
    return network(*map(int, parts), num_classes, in_channels, **options)


def _localisation_resnet(
    name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options
) -> nn.Module:
    """The same as the next, for localisation: a last map of 14×14 at 224 px instead of 7×7."""
    return _imagenet_resnet(name, parts, num_classes, in_channels, options, large_map=True)


def _imagenet_resnet(
    name: str,
    parts: Sequence[str],
    num_classes: int,
    in_channels: int,
    options: Options,
    *,
    large_map: bool = False,
) -> nn.Module:
    """ResNet (He et al. 2016) for 224 px, torchvision's: depth 10, 18, 34, 50, 101, 152; options `zero_gamma`,
    `head_std`.
    """
    _check_options(name, options, ("zero_gamma", "head_std"))
    _import_library("torchvision", name)
    # Imported here: torchvision is slow to import, and other networks do not need it.
    from saligraft.networks.imagenet_resnet import ImageNetResNet

    return ImageNetResNet(int(parts[0]), num_classes, in_channels, large_map=large_map, **options)


def _check_options(name: str, options: Options, valid: Sequence[str]) -> None:
    unknown = sorted(options.keys() - set(valid))
    if unknown:
        raise ValueError(f"{name} has no option {unknown[0]!r}; valid: {', '.join(valid) or 'none'}")


def _torchvision_network(
    name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options
) -> nn.Module:
    """Any torchvision classifier, for 3 channels, randomly initialised."""
    library = _import_library("torchvision.models", name)
    _check_model_name(name, parts[0], library.list_models(module=library))
    if in_channels != 3:
        raise ValueError(
            f"in_channels must be 3 for {name}: torchvision's models take RGB, got {in_channels}; "
            'timm\'s ("timm:NAME") take any number'
        )
    network: nn.Module = library.get_model(parts[0], weights=None, num_classes=num_classes, **options)
    return network


# Options of timm's models that shape or regularise them. All others are refused, in particular those that let a recipe
# open any file or address: checkpoint_path, pretrained_cfg, pretrained_cfg_overlay and cache_dir.
TIMM_OPTIONS = (
    "pretrained", "global_pool", "img_size", "patch_size", "window_size", "output_stride", "dynamic_img_size",
    "dynamic_img_pad", "strict_img_size", "drop_rate", "drop_path_rate", "drop_block_rate", "attn_drop_rate",
    "proj_drop_rate", "pos_drop_rate", "patch_drop_rate", "depth", "depths", "layers", "channels", "dims", "embed_dim",
    "embed_dims", "num_heads", "mlp_ratio", "mlp_ratios", "class_token", "no_embed_class", "reg_tokens", "pos_embed",
    "qkv_bias", "qk_norm", "init_values", "ls_init_value", "act_layer", "norm_layer", "norm_eps", "weight_init",
    "zero_init_last", "stem_type", "stem_width", "stem_size", "cardinality", "base_width", "growth_rate",
)  # fmt: skip


def _timm_network(name: str, parts: Sequence[str], num_classes: int, in_channels: int, options: Options) -> nn.Module:
    """Any timm classifier, randomly initialised unless option `pretrained` is true."""
    library = _import_library("timm", name)
    _check_model_name(name, parts[0], library.list_models())
    _check_options(name, options, TIMM_OPTIONS)
    try:
        network: nn.Module = library.create_model(parts[0], num_classes=num_classes, in_chans=in_channels, **options)
    except Exception as error:  # of any type, where an option does not suit the model
        raise ValueError(f"{name} cannot be built: {str(error) or type(error).__name__}") from error
    return network


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "wrn-DEPTH-WIDTH": _wide_resnet,
    "pyramidnet-DEPTH-ALPHA": _pyramidnet,
    "resnet-DEPTH-small": _small_resnet,
    "resnet-DEPTH-loc": _localisation_resnet,
    "resnet-DEPTH": _imagenet_resnet,
    "torchvision:NAME": _torchvision_network,
    "timm:NAME": _timm_network,
}


def build_network(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """Build a randomly initialised classifier by name.

    The initial weights come from torch's global generator: seed it to repeat them.

    Args:
        name: a pattern of `NETWORKS` with its capitals replaced by numbers or a model's name; or the import path
            "package.module:Name" of a class or function that takes `num_classes` and, if it can, `in_channels`.
        num_classes: K.
        in_channels: C.
        options: keyword parameters of the network.

    Returns:
        A module that maps images (B, C, H, W) to logits (B, K).

    Example:
        >>> import torch
        >>> build_network("wrn-10-1", num_classes=7)(torch.rand(2, 3, 16, 16)).shape
        torch.Size([2, 7])
    """
    if is_import_path(name):
        return _users_network(name, num_classes, in_channels, options)
    form, parts = network_form(name)
    return NETWORKS[form](name, parts, num_classes, in_channels, options)


def _users_network(name: str, num_classes: int, in_channels: int, options: Options) -> nn.Module:
    """A network of the user's own code."""
    parameters = inspect.signature(import_object(name, "network")).parameters
    channels = {"in_channels": in_channels} if "in_channels" in parameters else {}
    network = call(name, "network", {"num_classes": num_classes, **channels, **options})
    if not isinstance(network, nn.Module):
        raise ValueError(f"network {name!r} must build a torch.nn.Module, got {type(network).__name__}")
    return network


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
    listing = "timm.list_models()" if package == "timm" else "torchvision.models.list_models()"
    hint = suggestion(f"{package}:{close}" for close in _close_names(model_name, valid))
    raise ValueError(f'unknown network "{name}"; {hint}see {listing} ({len(valid)} names)')


def _close_names(name: str, valid: list[str]) -> list[str]:
    """At most three names that start with the name, are spelled similarly, or contain it, in this order."""
    name = re.sub("[- ]", "_", name.lower())
    if len(name) < 3:  # nearly all names contain it
        return []
    longer = [other for other in valid if other.startswith(name)]
    holding = [other for other in valid if name in other]
    return (longer or difflib.get_close_matches(name, valid, cutoff=0.75) or holding)[:3]
