"""ImageNet (ILSVRC 2012) from class folders; neither devkit nor download is needed.

Russakovsky et al., 2015. "test" is the official validation split, as is usual: labels of the test images are not
public.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from saligraft.checks import one_of
from saligraft.data.dataset import view_size
from saligraft.data.files import class_names, data_root, labelled_files, loose_image
from saligraft.data.image_files import IMAGENET_MEAN, IMAGENET_STD, ImageFiles
from saligraft.names import LARGEST_VIEW

# SHA-256 of the 1,000 sorted folder names of ILSVRC 2012, each with a line feed: only this set gets its class names.
_WNIDS = "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15"
_COUNTS = {"train": 1_281_167, "val": 50_000}
_INNER = (".", "imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC")  # where archives put train and val


def imagenet(
    *,
    split: str = "train",
    root: str | Path | None = None,
    size: int | Sequence[int] = 224,
    scale: tuple[float, float] = (0.08, 1.0),
    partial: bool = False,
) -> ImageFiles:
    """ImageNet's 1,000 classes, or some of them.

    Labels follow the sorted folder names. The complete 1,000 classes get their English names; otherwise classes are
    named after their folders.

    Args:
        split: "train", or "val", alias "test".
        root: Folder with train and val, each with a folder per class (n01440764 ...).
        size: Side, or (height, width), of a view.
        scale: Smallest and largest share of the area that a training view shows.
        partial: Whether images of the 1,000 classes may be missing.
    """
    one_of("split", split, ("train", "val", "test"))
    name = "train" if split == "train" else "val"
    place = _place(data_root("imagenet", root), name)
    train = place.parent / "train"
    wnids = class_names(train if train.is_dir() else place)
    files, labels = labelled_files(place, wnids)
    official = hashlib.sha256("".join(f"{wnid}\n" for wnid in wnids).encode()).hexdigest() == _WNIDS
    if official and not partial and len(files) != _COUNTS[name]:
        raise ValueError(
            f"{place} must hold {_COUNTS[name]:,} images, got {len(files):,}; the option partial = true allows fewer"
        )
    return ImageFiles(
        name="imagenet",
        labels=labels,
        classes=_names() if official else wnids,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        folder=place,
        files=files,
        size=view_size(size, most=LARGEST_VIEW),
        scale=scale,
        upright=False,
    )


def _place(root: Path, name: str) -> Path:
    """Find the folder of one split, which must be sorted into classes, unlike the official archive of val."""
    place = next((root / inner / name for inner in _INNER if (root / inner / name).is_dir()), None)
    if place is None:
        raise ValueError(
            f"ImageNet must be in {root} as train and val, each with a folder per class (n01440764 ...), got no "
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
    """The English class names of torchvision's models, in the order of their folders."""
    from torchvision.models import ResNet50_Weights

    return tuple(ResNet50_Weights.IMAGENET1K_V1.meta["categories"])
