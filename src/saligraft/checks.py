"""Argument checks: each error contains the argument's name, the expectation and the actual value.

Public functions validate their arguments here, one call per argument; the functions behind them trust their callers.
Checks of shape and type always run. Checks of values read a tensor's content, which would stall a GPU and cannot
be traced, so they run only on CPU tensors outside compilation; `set_validation(True)` enables them everywhere.
"""

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

from saligraft.names import one_of as one_of
from saligraft.names import utf8 as utf8

# Absurdly large numbers are refused: they would overflow float32 or int64, loop forever or exhaust the memory.
LARGEST = 1e30
LARGEST_INT = 2**63 - 1

SHAPES = {4: "(B, C, H, W)", 3: "(B, C, L)", 5: "(B, C, T, H, W)"}  # images, signals, videos, by number of dimensions
ANY_SHAPE = tuple(SHAPES)
REGRESSION = (
    "regression needs a criterion for dense targets such as torch.nn.MSELoss(), and maps that need no classes, such as "
    "'feature-map'"
)

_validate_everywhere = False

P = ParamSpec("P")
R = TypeVar("R")


class set_validation:  # noqa: N801  (a function to its users, like torch.set_grad_enabled)
    """Validate tensor values on every device and in every public function; also a context manager.

    By default values are validated on the CPU only, and samples whose maps are negative or not finite are left
    ungrafted instead of raising an error.

    Args:
        enabled: Whether to validate values everywhere.

    Example:
        >>> import torch, saligraft as sg
        >>> broken = torch.full((1, 2, 2), float("nan"))
        >>> with sg.set_validation(True):
        ...     sg.salient_regions(broken)
        Traceback (most recent call last):
        ValueError: saliency must be finite, got NaN or infinity in sample 0
    """

    def __init__(self, enabled: bool) -> None:
        global _validate_everywhere
        self._before = _validate_everywhere
        _validate_everywhere = bool(enabled)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        global _validate_everywhere
        _validate_everywhere = self._before


def may_look(tensor: Tensor) -> bool:
    """True where a tensor's values may be read: on the CPU outside compilation, or where validation is on."""
    if torch.compiler.is_compiling() or tensor.is_meta or type(tensor) is not Tensor:
        return False  # a fake or meta tensor has no values
    return _validate_everywhere or tensor.device.type == "cpu"


# Training steps call these, so a valid value takes one expression; only invalid ones make further calls.
def positive(name: str, value: float) -> None:
    """A finite number > 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        _refuse_number(name, value, "a finite number > 0")


def not_negative(name: str, value: float) -> None:
    """A finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        _refuse_number(name, value, "a finite number >= 0")


def probability(name: str, value: float) -> None:
    """A number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        _refuse_number(name, value, "in [0, 1]")


def norm(value: float) -> None:
    """The order of a vector norm: any number > 0, infinity (the maximum) included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value <= LARGEST or value == math.inf):
        _refuse_number("norm", value, "> 0")


def number(name: str, value: float) -> None:
    """A finite number that does not overflow later arithmetic."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse_number(name, value, "finite")
    not_absurd(name, value)


def not_absurd(name: str, value: float, most: float = LARGEST) -> None:
    """Between -most and most."""
    if not -most <= value <= most:
        raise ValueError(f"{name} must be between -{most:g} and {most:g}, got {value!r}")


def _refuse_number(name: str, value: float, expected: str) -> NoReturn:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if abs(value) < math.inf:
        not_absurd(name, value)
    raise ValueError(f"{name} must be {expected}, got {value!r}")


def numbers(name: str, value: Sequence[float]) -> tuple[float, ...]:
    """A non-empty sequence of numbers, as a tuple."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a sequence of numbers, got {value!r}")
    for each in value:
        number(f"each of {name}", each)
    return tuple(value)


def statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, prefix: str = ""
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Mean and standard deviation of the pixels, as tuples: both or neither, the latter > 0."""
    if mean is None or std is None:
        if mean is not std:
            raise ValueError(f"{prefix}mean and {prefix}std must be given together, got {mean} and {std}")
        return None, None
    mean, std = numbers(f"{prefix}mean", mean), numbers(f"{prefix}std", std)
    for each in std:
        positive(f"each of {prefix}std", each)
    return mean, std


def whole_number(name: str, value: int, least: int, most: int = LARGEST_INT) -> None:
    """An int in [least, most]."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be <= {most}, got {value}")


def probabilities(value: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One probability for each of `count` methods, summing to 1; all equal if None."""
    if value is None:
        return (1 / count,) * count
    value = numbers("probabilities", value)
    if len(value) != count:
        raise ValueError(f"probabilities must have one entry per method: expected {count}, got {len(value)}")
    for each in value:
        probability("each of probabilities", each)
    if abs(sum(value) - 1) > 1e-6:
        raise ValueError(f"probabilities must sum to 1, got {sum(value):.6g}")
    return tuple(map(float, value))


def grids(value: Sequence[int]) -> tuple[int, ...]:
    """A non-empty sequence of whole numbers > 0, as a tuple."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"grids must be a sequence of ints such as (4, 8), got {value!r}")
    if not value:
        raise ValueError("grids must name at least one grid size, got an empty sequence")
    for grid in value:
        whole_number("each of grids", grid, least=1)
    return tuple(value)


def grids_fit(value: Sequence[int], image: Tensor, name: str = "grids") -> None:
    """Checks all grids, not only the one drawn, so that a run fails at its first step or not at all."""
    height, width = frame_size(image)
    if max(value) > (width if image.ndim == 3 else min(height, width)):
        raise ValueError(f"{name} must not exceed the image ({height}, {width}), got {max(value)}")


def shape_of(tensor: Tensor) -> str:
    """The shape as in error messages."""
    return f"({', '.join(str(int(size)) for size in tensor.shape)})"


def kind_of(value: object) -> str:
    """What a value is, as in error messages; a class passed in place of an instance is named."""
    return f"the class {value.__name__}, not an instance" if isinstance(value, type) else type(value).__name__


def tensor(name: str, value: object) -> None:
    """A tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def rank(name: str, value: Tensor, legend: str, like: Tensor | None = None, like_name: str = "images") -> None:
    """A tensor with the number of dimensions of a legend such as ``"(B, h, w)"``, on the device of `like`."""
    if not isinstance(value, Tensor):
        tensor(name, value)
    if value.ndim != legend.count(",") + 1:
        raise ValueError(f"{name} must have shape {legend}, got {shape_of(value)}")
    if like is not None and value.device != like.device:
        same_device(name, value, like, like_name)


def per_sample(name: str, value: Tensor, images: Tensor, legend: str = "(B)") -> None:
    """A draw with one entry, or one row, for every image, on the images' device."""
    if not isinstance(value, Tensor) or value.ndim != legend.count(",") + 1 or value.device != images.device:
        rank(name, value, legend, images)
    if value.shape[0] != len(images):
        raise ValueError(f"{name} must have one entry per image: expected {len(images)}, got {value.shape[0]}")


def proportions(name: str, value: Tensor, images: Tensor) -> None:
    """A draw of one number in [0, 1] for every image, floating point, on the images' device."""
    per_sample(name, value, images)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")
    mask_values(value, name)


def same_device(name: str, value: Tensor, other: Tensor, other_name: str = "images") -> None:
    """On the same device as another argument."""
    if value.device != other.device:
        raise ValueError(f"{name} must be on the device of {other_name} ({other.device}), got {value.device}")


def generator(value: torch.Generator | None) -> None:
    """A generator on the CPU, or None for torch's global one."""
    if value is not None and not isinstance(value, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {type(value).__name__}")
    if value is not None and value.device.type != "cpu":
        raise ValueError(f"generator must be on the CPU, where values are drawn, got {value.device}")


def frame_size(images: Tensor) -> tuple[int, int]:
    """H and W of what a mask covers: of images, of every frame of a video; a signal (B, C, L) is 1 high and L wide."""
    return (images.shape[-2] if images.ndim > 3 else 1), images.shape[-1]


def images(value: Tensor, name: str = "images", dims: Collection[int] = (4,)) -> None:
    """(B, C, H, W), or another of `SHAPES`; floating point, at least one image with at least one pixel."""
    if not isinstance(value, Tensor) or value.ndim not in dims:
        tensor(name, value)
        raise ValueError(f"{name} must have shape {' or '.join(SHAPES[each] for each in dims)}, got {shape_of(value)}")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}: convert and normalise them first")
    if 0 in value.shape:
        raise ValueError(f"{name} must not be empty, got shape {shape_of(value)}")


def labels(
    value: Tensor, batch: int, like: Tensor | None = None, like_name: str = "images", *, classes: bool = False
) -> None:
    """Class indices (B,), rows (B, K), and, unless they must be `classes`, numbers (B,); on the device of `like`."""
    if not isinstance(value, Tensor):
        tensor("labels", value)
    if value.ndim not in (1, 2):
        raise ValueError(f"labels must have shape (B,) or (B, K), got {shape_of(value)}")
    is_number = value.is_floating_point()
    if value.ndim == 1 and ((classes and is_number) or value.is_complex() or value.dtype == torch.bool):
        hint = f": {REGRESSION}" if is_number else ""
        raise TypeError(f"labels of shape (B,) must be integer class indices, got {value.dtype}{hint}")
    if value.shape[0] != batch:
        raise ValueError(f"labels must have one entry per image: expected {batch}, got {value.shape[0]}")
    if like is not None and value.device != like.device:
        same_device("labels", value, like, like_name)


def label_values(value: Tensor, num_classes: int | None = None) -> None:
    """Class indices in [0, num_classes); other labels finite, and >= 0 where the number of classes is given."""
    if not may_look(value):
        return
    if value.ndim == 1 and not value.is_floating_point():
        low, high = map(int, value.long().aminmax())  # .long(): torch lacks it for uint16
        if low < 0 or (num_classes is not None and high >= num_classes):
            expected = ">= 0" if num_classes is None else f"in [0, {num_classes})"
            numbers = ", or floats for regression" if num_classes == 1 else ""
            raise ValueError(f"labels must be class indices {expected}{numbers}, got {low if low < 0 else high}")
    elif not value.is_floating_point():
        return
    elif num_classes is None:
        if not bool(value.isfinite().all()):
            raise ValueError("labels must be finite, got NaN or infinity")
    elif not bool((value.isfinite() & (value >= 0)).all()):
        raise ValueError(
            f"labels given as rows must be finite and >= 0, got negative or non-finite entries: {REGRESSION}"
        )


def saliency(value: Tensor, batch: int | None = None, name: str = "saliency", like: Tensor | None = None) -> None:
    """(B, h, w), floating point, not empty, on the device of `like`; with validation on, values too."""
    if not isinstance(value, Tensor) or value.ndim != 3:
        rank(name, value, "(B, h, w)")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}")
    if 0 in value.shape:
        raise ValueError(f"{name} must not be empty, got shape {shape_of(value)}")
    if batch is not None and value.shape[0] != batch:
        raise ValueError(f"{name} must have one map per image: expected {batch}, got {value.shape[0]}")
    if like is not None and value.device != like.device:
        same_device(name, value, like)
    if _validate_everywhere:
        saliency_values(value, name)


def saliency_values(value: Tensor, name: str = "saliency") -> None:
    """Finite and >= 0; called by the classes, never by `GraftingStep`, which leaves such samples ungrafted."""
    if not may_look(value):
        return
    broken = ~value.isfinite().flatten(1).all(dim=1)
    if bool(broken.any()):
        raise ValueError(f"{name} must be finite, got NaN or infinity in sample {int(broken.nonzero()[0])}")
    if bool((value < 0).any()):
        raise ValueError(f"{name} must be >= 0, got {float(value.min()):.4g}")


def not_finer(name: str, value: Tensor, images: Tensor) -> None:
    """Maps with at most as many rows and columns as the images have pixels."""
    height, width = frame_size(images)
    if value.shape[1] > height or value.shape[2] > width:
        raise ValueError(f"{name} must not be finer than the image ({height}, {width}), got {shape_of(value)}")


def cells(name: str, value: Tensor, saliency: Tensor) -> None:
    """A bool mask of the map's shape, on its device."""
    if not isinstance(value, Tensor):
        tensor(name, value)
    if value.dtype != torch.bool or value.shape != saliency.shape:
        expected = shape_of(saliency)
        raise ValueError(f"{name} must be bool of shape {expected}, got {value.dtype} {shape_of(value)}")
    if value.device != saliency.device:
        same_device(name, value, saliency)


def mask_values(value: Tensor, name: str = "mask") -> None:
    """In [0, 1], as a bool mask always is."""
    if value.dtype == torch.bool or not may_look(value):
        return
    if not bool(((value >= 0) & (value <= 1)).all()):
        raise ValueError(f"{name} must lie in [0, 1], got {float(value.min()):.4g} to {float(value.max()):.4g}")


def at_least_float32(value: Tensor) -> Tensor:
    """Widen half precision: eleven bits are too few for a norm or a label's weight."""
    return value if value.dtype in (torch.float32, torch.float64) else value.float()


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with autocast off on the device of its first tensor, so that autocast does not change its result.

    For functions with a matrix product, which autocast runs in half precision, or that reads a network's features.
    """

    @functools.wraps(function)
    def in_full_precision(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = [value.device.type for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if kinds and _autocasts(kinds[0]):
            with torch.autocast(kinds[0], enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return in_full_precision


def _autocasts(kind: str) -> bool:
    """Whether autocast is on for a device type; not all support it, and torch 2.4 cannot trace the query."""
    known = kind != "meta" and (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind))
    return known and torch.is_autocast_enabled(kind)
