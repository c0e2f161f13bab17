"""CIFAR-100 and CIFAR-10 (Krizhevsky 2009) from the official files: pickles or binaries, unpacked or as archives.

Files are verified against the official md5 before they are parsed. Both forms hold the same samples in the same order,
kept in the binaries' format: label bytes (for CIFAR-100 coarse, then fine), then 3 x 32 x 32 pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from saligraft.checks import one_of
from saligraft.data import restricted_unpickler
from saligraft.data.archives import damage_named, members
from saligraft.data.cache import cached, content_key
from saligraft.data.dataset import ImageData
from saligraft.data.files import check_file, data_root, download_command

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32
_MOST_BYTES = 1 << 28  # read from one file; the largest, CIFAR-100's training pickle, has 155 MB

# The class names in the order of their labels, as `meta` and `batches.meta` list them.
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_FINE_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
    shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
    television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905  (a hundred strings in quotes are harder to read)
)
CIFAR100_COARSE_CLASSES = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2
    """.split()  # noqa: SIM905
)


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form in which a set is published.

    Args:
        folder: Name of its folder.
        archive: Name of its archive.
        digest: Digest of the archive.
        files: Files of each split, with their md5.
    """

    folder: str
    archive: str
    digest: str
    files: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class CifarFiles:
    """A data set as published on its official page.

    Args:
        name: Name of the set.
        label_names: The pickles' keys, in the order of the binaries' label bytes.
        pickles: The Python version.
        binaries: The binary version.
    """

    name: str
    label_names: tuple[bytes, ...]
    pickles: Form
    binaries: Form


# md5 of the archives are from the official page, those of the pickles from torchvision's datasets/cifar.py. Those of
# the CIFAR-100 binaries were computed by converting the verified pickles; those of the CIFAR-10 binaries are from
# rai-project/dldataset.
CIFAR100 = CifarFiles(
    name="cifar100",
    label_names=(b"coarse_labels", b"fine_labels"),
    pickles=Form(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        digest="md5:eb9058c3a382ffc7106e4002c42a8d85",
        files={
            "train": {"train": "16019d7e3df5f24257cddd939b257f8d"},
            "test": {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        },
    ),
    binaries=Form(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        digest="md5:03b5dce01913d631647c71ecec9e9cb8",
        files={
            "train": {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15"},
            "test": {"test.bin": "4499cfba6c016c1be1438163640a0898"},
        },
    ),
)
CIFAR10 = CifarFiles(
    name="cifar10",
    label_names=(b"labels",),
    pickles=Form(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        digest="md5:c58f30108f718f92721af3b95e74349a",
        files={
            "train": {
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            },
            "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
        },
    ),
    binaries=Form(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        digest="md5:c32a1d4ab5d03f1284b67883e8d87530",
        files={
            "train": {
                "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
                "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
                "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
                "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
                "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            },
            "test": {"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
        },
    ),
)


def cifar100(*, split: str = "train", root: str | Path | None = None, labels: str = "fine") -> ImageData:
    """CIFAR-100: 50,000 training and 10,000 test images of 100 classes.

    Args:
        split: "train" or "test".
        root: Folder with the files of `cifar-100-python` or `cifar-100-binary`, that folder, or its archive.
        labels: "fine" (100 classes) or "coarse" (20).
    """
    one_of("labels", labels, ("fine", "coarse"))
    records = _records(CIFAR100, split, root)
    fine = labels == "fine"
    return ImageData(
        name="cifar100",
        images=records[:, 2:].view(-1, 3, 32, 32),
        labels=records[:, int(fine)].long(),
        classes=CIFAR100_FINE_CLASSES if fine else CIFAR100_COARSE_CLASSES,
        mean=(0.50708, 0.48655, 0.44092),  # of the training pixels, computed from the official file
        std=(0.26733, 0.25644, 0.27615),
    )


def cifar10(*, split: str = "train", root: str | Path | None = None) -> ImageData:
    """CIFAR-10: 50,000 training and 10,000 test images of 10 classes.

    Args:
        split: "train" or "test".
        root: Folder with the files of `cifar-10-batches-py` or `cifar-10-batches-bin`, that folder, or its archive.
    """
    records = _records(CIFAR10, split, root)
    return ImageData(
        name="cifar10",
        images=records[:, 1:].view(-1, 3, 32, 32),
        labels=records[:, 0].long(),
        classes=CIFAR10_CLASSES,
        mean=(0.4914, 0.4822, 0.4465),  # of the training pixels, as commonly published for this set
        std=(0.2471, 0.2435, 0.2616),
    )


def _records(source: CifarFiles, split: str, root: str | Path | None) -> Tensor:
    """Label bytes and pixels (N, L + 3072) uint8, cached after the first read.

    The cache key is the official md5, so a cached set need not be read again: only files with that md5 can create it.
    """
    one_of("split", split, ("train", "test"))
    form, place = _find(source, split, data_root(source.name, root))

    def blocks() -> Iterator[Tensor]:
        for path, content in _contents(form, place, split):
            check_file(path, f"md5:{form.files[split][path.name]}", content)
            if form is source.pickles:
                batch = restricted_unpickler.loads(content)
                columns = [torch.tensor(batch[name], dtype=torch.uint8)[:, None] for name in source.label_names]
                yield torch.cat([*columns, batch[b"data"].values], dim=1)
            else:
                stored = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                yield stored.reshape(-1, len(source.label_names) + PIXELS)

    return cached(f"{source.name}-{split}", content_key(source.binaries.files[split].values()), blocks)


def _find(source: CifarFiles, split: str, root: Path) -> tuple[Form, Path]:
    """Find a form and the folder or archive that contains it; unpacked files take precedence."""
    forms = (source.pickles, source.binaries)
    for form in forms:
        for folder in (root, root / form.folder):
            missing = [folder / file for file in form.files[split] if not (folder / file).is_file()]
            if not missing:
                return form, folder
            if any((folder / file).is_file() for files in form.files.values() for file in files):
                raise FileNotFoundError(f"{missing[0]} is missing, although other files of {form.folder} exist")
    for form in forms:
        if (root / form.archive).is_file():
            return form, root / form.archive
    raise FileNotFoundError(
        f"no files of {source.name} ({split}) in {root}: put {source.pickles.archive} from {PAGE} there, unpacked or "
        f"not, or download it: {download_command(source.name, root)}"
    )


def _contents(form: Form, place: Path, split: str) -> Iterator[tuple[Path, bytes]]:
    """Path and content of each file of the split, from a folder or from a verified archive, which is not unpacked."""
    if place.is_dir():
        for file in form.files[split]:
            with (place / file).open("rb") as opened:
                yield place / file, opened.read(_MOST_BYTES)
        return
    check_file(place, form.digest)
    names = [f"{form.folder}/{file}" for file in form.files[split]]
    with damage_named(place):
        # in one pass: seeking back in an archive decompresses it again
        contents = {name: b"".join(content) for name, content in members(place) if content and name in names}
        for name in names:
            if name not in contents:
                raise ValueError(f"it contains no {name}")
    for name in names:
        yield place / name, contents[name]
