"""Names and limits that recipes and the command line check before the slow import of torch.

The one list of methods: recipes, steps, pages and tests read it. To add a method, write its file and add its line here.
"""

import difflib
from collections.abc import Collection
from typing import Any, Literal

# Kind → name → module and class in `saligraft.methods`, name in prose, and forward and backward passes of a training
# step over a batch, those for saliency maps included.
METHODS: dict[str, dict[str, tuple[str, str, tuple[int, int]]]] = {
    "batch mixers": {
        "mixup": ("mixup:Mixup", "Mixup", (1, 1)),
        "cutmix": ("cutmix:CutMix", "CutMix", (1, 1)),
        "puzzlemix": ("puzzlemix:PuzzleMix", "PuzzleMix", (2, 2)),
        "attentive-cutmix": ("attentive_cutmix:AttentiveCutMix", "Attentive CutMix", (2, 1)),
        "saliencymix": ("saliencymix:SaliencyMix", "SaliencyMix", (1, 1)),
        "saliency-grafting": ("saliency_grafting:SaliencyGrafting", "Saliency Grafting", (2, 2)),
    },
    "image transforms": {"cutout": ("cutout:Cutout", "Cutout", (1, 1))},
    "feature mixers": {"manifold-mixup": ("manifold_mixup:ManifoldMixup", "Manifold Mixup", (1, 1))},
    "step strategies": {"augmix": ("augmix:AugMix", "AugMix", (3, 3))},  # three views in one batch
}
PassPlan = Literal["both", "joint", "mixed", "remembered"]  # what `GraftingStep` trains on
LARGEST_VIEW = 4096  # pixels per side of images that are read from files


def one_of(name: str, value: object, options: Collection[Any]) -> None:
    """One of the options, which the error lists."""
    if value not in options:
        valid = ", ".join(map(repr, options))
        raise ValueError(f"{name} must be one of {valid}; got {value!r}{did_you_mean(value, options)}")


def did_you_mean(value: object, options: Collection[Any]) -> str:
    """The end of an error message: a similar option, if there is one."""
    names = [option for option in options if isinstance(option, str)]
    same = [name for name in names if name.lower() == str(value).lower()]
    near = same or difflib.get_close_matches(str(value), names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def utf8(name: str, value: str) -> None:
    """Text that can be written as UTF-8: Python represents other bytes of file names as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid UTF-8, got {value!r}") from None
