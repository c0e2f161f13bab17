"""Names, limits and wording of messages, which recipes and the command line need before the slow import of torch.

`METHODS` is the one list of methods: recipes, steps, pages and tests read it. To add a method, write its file and add
its line here.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
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
TOP_K = "saliency-grafting-top-k"  # the ablation of §5.4 among the methods that `saligraft show` compares
DATA_SETS = ("shapes", "cifar100", "cifar10", "tiny-imagenet", "imagenet", "speech-commands", "cub", "folder")
DATA_ALIASES = {"cub200": "cub"}
SMALL_RECIPES = {  # of each data set that can be downloaded, to download it by `saligraft train`
    "cifar100": "cifar100-wrn-10-2",
    "cifar10": "cifar100-wrn-10-2 --set data.name=cifar10",
    "tiny-imagenet": "tiny-imagenet-resnet-10",
    "speech-commands": "speech-commands-wrn-10-2",
    "cub": "cub-resnet-10",
}
# Capitals stand for a number or a model's name. The first that fits counts.
NETWORK_FORMS = (
    "wrn-DEPTH-WIDTH",
    "pyramidnet-DEPTH-ALPHA",
    "resnet-DEPTH-small",
    "resnet-DEPTH-loc",
    "resnet-DEPTH",
    "torchvision:NAME",
    "timm:NAME",
)
SMALL_RESNET_DEPTHS = (10, 18, 34)
BENCH_SECTIONS = ("operations", "steps", "peers", "share", "memory", "solvers", "methods", "trainer")
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


def one_line(message: object) -> str:
    """The text of an error or warning on one line; its type if it has none."""
    return " ".join(str(message).split()) or type(message).__name__


def plural(count: int, one: str, several: str = "") -> str:
    """A number and its noun, such as "1 run" or "3 runs"."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def listed(names: Sequence[object], most: int = 5) -> str:
    """The first names, separated by commas, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def resolve(name: str, root: str | Path | None = None) -> tuple[str, str | Path | None]:
    """Return the entry of `DATA_SETS` and the root that the name of a data set means.

    Args:
        name: An entry, an alias of one, or "folder:PATH", which contains both.
        root: Folder of the files, returned unless the name contains it.

    Returns:
        Name and root; an unknown name raises an error that lists the valid ones.

    Example:
        >>> resolve("folder:photos"), resolve("cub200")
        (('folder', 'photos'), ('cub', None))
    """
    kind, colon, path = name.partition(":")
    if kind == "folder" and colon:
        if root is not None:
            raise ValueError(f"root must be None for {name}, whose name contains it, got {str(root)!r}")
        if not path:
            raise ValueError("data set folder: must name a path, as in folder:PATH, got none")
        name, root = kind, path
    name = DATA_ALIASES.get(name, name)
    one_of("data set", name, DATA_SETS)
    return name, root


def network_form(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the entry of `NETWORK_FORMS` that a network's name has, and what stands for its capitals.

    Args:
        name: Name of a network; one that has no form raises an error that lists them.

    Example:
        >>> network_form("wrn-28-10")
        ('wrn-DEPTH-WIDTH', ('28', '10'))
    """
    for form in NETWORK_FORMS:
        pattern = re.sub("[A-Z]+", lambda blank: "(.*)" if blank[0] == "NAME" else r"(\d+)", form)
        if match := re.fullmatch(pattern, name):
            return form, match.groups()
    family = [f'"{form}"' for form in NETWORK_FORMS if name.startswith(re.split("[A-Z]", form)[0])]
    if family:
        blanks = " and ".join(re.findall("[A-Z]+", family[0]))
        numbers = "are integers" if " and " in blanks else "is an integer"
        raise ValueError(f'network must be named {" or ".join(family)}, where {blanks} {numbers}, got "{name}"')
    valid = ", ".join(f'"{form}"' for form in NETWORK_FORMS)
    hint = suggestion(_with_dashes(name))
    raise ValueError(f'unknown network "{name}"; {hint}valid: {valid}, such as "wrn-28-10" or "timm:convnext_tiny"')


def suggestion(networks: Iterable[str]) -> str:
    """The middle of an error message about a network: similar names, if there are any."""
    shown = [f'"{name}"' for name in networks]
    return f"did you mean {' or '.join(shown)}? " if shown else ""


def _with_dashes(name: str) -> list[str]:
    """Suggest valid names for misspellings such as "resnet18" or "wrn28_10"."""
    dashed = re.sub(r"(?<=[a-z])_?(?=\d)|(?<=\d)[_x](?=\d)", "-", name.lower())
    small_depths = "|".join(map(str, SMALL_RESNET_DEPTHS))
    known = rf"(wrn|pyramidnet)-\d+-\d+|resnet-\d+(-loc)?|resnet-({small_depths})-small"
    return [form for form in (dashed, f"{dashed}-small") if re.fullmatch(known, form)]


def utf8(name: str, value: str) -> None:
    """Text that can be written as UTF-8: Python represents other bytes of file names as surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid UTF-8, got {value!r}") from None
