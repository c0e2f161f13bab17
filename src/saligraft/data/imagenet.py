"""ImageNet (ILSVRC 2012) from class folders; neither devkit nor download is needed.

Russakovsky et al., 2015. Tests run on the official validation images, as everywhere: labels of the test images are
not public.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from saligraft.checks import one_of
from saligraft.data.class_folders import class_names, labelled_files, loose_image
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles, view_size
from saligraft.data.roots import data_root

# SHA-256 of the 1,000 folder names of ILSVRC 2012, sorted, each with a line feed: no other set gets its names.
_WNIDS = "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15"
_COUNTS = {"train": 1_281_167, "test": 50_000}
_FOLDERS = {"train": "train", "test": "val"}
_INNER = (".", "imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # where archives put train and val


def imagenet(
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | Sequence[int] = 224,
    scale: tuple[float, float] = (0.08, 1.0),
    partial: bool = False,
) -> ImageFiles:
    """ImageNet's 1,000 classes, or some; `root` holds train and val with a folder per class (n01440764 ...).

    Labels follow the sorted folder names. Of fewer classes, each is named as its folder is. All 1,000 get their names
    in words and must be complete unless `partial`. `size`, `scale`: see `ImageFiles`.
    """
    one_of("split", split, tuple(_FOLDERS))
    place = _place(data_root("imagenet", root), _FOLDERS[split])
    train = place.parent / "train"
    wnids = class_names(train if train.is_dir() else place)
    files, labels = labelled_files(place, wnids)
    official = hashlib.sha256("".join(f"{wnid}\n" for wnid in wnids).encode()).hexdigest() == _WNIDS
    if official and not partial and len(files) != _COUNTS[split]:
        raise ValueError(
            f"{place} must hold {_COUNTS[split]:,} images, got {len(files):,}; the option partial = true admits a part"
        )
    return ImageFiles(
        name="imagenet",
        labels=labels,
        classes=_names() if official else wnids,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        folder=place,
        files=files,
        size=view_size(size),
        scale=scale,
        upright=False,
    )


def _place(root: Path, name: str) -> Path:
    """The folder of one split, sorted into classes, which val is not as its archive comes."""
    place = next((root / inner / name for inner in _INNER if (root / inner / name).is_dir()), None)
    if place is None:
        raise ValueError(
            f"ImageNet must lie in {root} as train and val, each with a folder per class (n01440764 ...), got no "
            f"{name}; the files come from image-net.org, after registration"
        )
    loose = loose_image(place)
    if loose is not None:
        raise ValueError(
            f"{place} must hold a folder per class, got {loose} in none; torchvision.datasets.ImageNet(FOLDER, 'val') "
            "sorts ILSVRC2012_img_val.tar by ILSVRC2012_devkit_t12.tar.gz"
        )
    return place


def _names() -> tuple[str, ...]:
    """The classes in words, in the order of their folders, as torchvision's models have them."""
    from torchvision.models import ResNet50_Weights

    return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
