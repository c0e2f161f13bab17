"""Look at a method: mix pairs from a data set or from one's own image files, and draw what happened.

A lens is the network whose feature maps serve as saliency: of a finished run, untrained by name, or, where nothing
is said, trained on `shapes` in about half a minute. The page says which.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import ImageOps
from torch import Tensor, nn

from saligraft.data import ImageData, Split
from saligraft.data.image_files import decoded
from saligraft.draws import key
from saligraft.networks import build_network
from saligraft.reports.gallery import GalleryRow, Mixer, draw_rows
from saligraft.reports.run_report import write_run_page
from saligraft.saliency import saliency_source
from saligraft.saliency.capture import logits_of
from saligraft.threads import one_thread
from saligraft.training import Recipe, load_recipe, train
from saligraft.training.run_folder import MODEL, RECIPE, RESULT, load_weights
from saligraft.training.setup import load_split, make_network

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})
POOL = 64  # images that pairs are drawn from: enough to choose among, quick for any network
QUICK_EPOCHS = 14


@dataclass(frozen=True, kw_only=True)
class Lens:
    """A network as a source of saliency, the input it expects, and one honest line on where it comes from."""

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None  # height and width it was trained at; None: as the images come
    origin: str
    classes: tuple[str, ...] = ()  # what its logits stand for

    def describe(self) -> str:
        """The line for the page: where the network comes from, and at what size it looks."""
        if self.size is None:
            return self.origin
        return f"{self.origin}; it looks at {self.size[0]}×{self.size[1]} pixels"

    def view(self, images: Tensor) -> Tensor:
        """Images (B,C,H,W) in [0,1] as the network expects them: its size, and normalised."""
        if self.size is not None and tuple(images.shape[-2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std

    def saliency(self, images: Tensor, source: str = "feature-map", labels: Tensor | None = None) -> Tensor:
        """Maps (B,h,w) of images (B,C,H,W) in [0,1], in evaluation mode; the images' own size does not matter."""
        return saliency_source(source, self.network)(self.view(images), labels)

    def labels_of(self, images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Tensor:
        """The labels, if they count the network's own classes; otherwise the class it takes each image for."""
        if classes == self.classes:
            return labels
        with self.looking():
            return logits_of(self.network(self.view(images))).argmax(1)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """The network in evaluation mode, without gradients; afterwards in the mode it was in."""
        training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.train(training)


def choose(data: Split, count: int, seed: int) -> ImageData:
    """Up to `count` images of the data, without masks and boxes, chosen and ordered by the seed."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(key(seed)))[:count]
    return replace(data.take(order), masks=None, boxes=None)


def draw_gallery(method: Mixer, lens: Lens, pool: ImageData, *, count: int, seed: int) -> list[GalleryRow]:
    """Rows of pairs of the pool's images, each pair mixed by the method with the lens's saliency."""
    images = pool.images.float() / 255
    saliency = None
    if getattr(method, "needs_saliency", False):
        labels = lens.labels_of(images, pool.labels, pool.classes)
        saliency = lens.saliency(images, getattr(method, "saliency_source", "feature-map"), labels)
    return draw_rows(method, images, pool.labels, pool.classes, saliency=saliency, count=count, seed=seed)


def network_of_run(folder: Path) -> Lens:
    """The trained network of a run folder."""
    if not (folder / RECIPE).is_file():
        raise ValueError(f"run must be the folder of a finished run, got {folder} without {RECIPE}")
    recipe = load_recipe(folder / RECIPE)
    data = load_split(recipe, "test")
    network = make_network(recipe, data)
    load_weights(folder, network)
    origin = f"{recipe.network.name}, trained for {recipe.training.epochs} epochs on {recipe.data.name} ({folder})"
    size = data.image_shape[1:]
    return Lens(network=network, mean=data.mean, std=data.std, size=size, origin=origin, classes=data.classes)


def untrained_network(name: str, data: ImageData, seed: int) -> Lens:
    """A network by name with random weights; its map shows contrast, not objects, and the line says so."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(name, max(data.num_classes, 2), in_channels=data.images.shape[1])
    origin = f"{name} with random weights: untrained, so its map follows contrast rather than objects"
    return Lens(network=network, mean=data.mean, std=data.std, size=None, origin=origin, classes=data.classes)


def quick_network(folder: Path, seed: int = 0) -> Lens:
    """A small network trained on `shapes` in about half a minute; kept in `folder` for the next time."""
    recipe = quick_recipe(seed)
    whole = all((folder / name).is_file() for name in (RECIPE, MODEL, RESULT))
    if not whole or load_recipe(folder / RECIPE) != recipe:
        with one_thread():
            write_run_page(train(recipe, out=folder, overwrite=True))
    lens = network_of_run(folder)
    origin = (
        f"{recipe.network.name}, trained for this picture alone: {QUICK_EPOCHS} epochs on shapes, seed {seed} "
        f"(kept in {folder})"
    )
    return replace(lens, origin=origin)


def quick_recipe(seed: int) -> Recipe:
    """A short plain run, which learns fastest: enough for a map that finds objects, not for a good classifier."""
    sizes = [
        "title=A quick network to look through",
        "network.name=wrn-10-1",
        f"training.epochs={QUICK_EPOCHS}",
        "training.batch_size=20",
    ]
    return load_recipe("shapes-wrn-10-2", sizes, seed=seed)


def read_images(paths: Sequence[Path], size: int) -> ImageData:
    """Image files, and those in folders, cut to squares of one size; classes from folders or else file names."""
    files = [file for path in paths for file in _files(path)]
    if len(files) < 2:
        raise ValueError(f"images must name at least 2 files, got {len(files)}")
    folders = {file.parent.name for file in files}
    names = [_class_name(file.parent.name if len(folders) > 1 else file.stem) for file in files]
    classes = tuple(sorted(set(names)))
    images = torch.stack([_read_square(file, size) for file in files])
    pixels = images.double().div(255).transpose(0, 1).flatten(1)
    return ImageData(
        name="your images",
        images=images,
        labels=torch.tensor([classes.index(name) for name in names]),
        classes=classes,
        mean=tuple(pixels.mean(1).tolist()),
        std=tuple(pixels.std(1).clamp(min=1e-3).tolist()),
    )


def _class_name(name: str) -> str:
    """A folder's or file's name as words, without a number that only sorts: `025.Pelagic_Cormorant`."""
    return re.sub(r"^\d+[._ -]+(?=.)", "", name).replace("_", " ")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
        if not found:
            raise ValueError(f"folder must hold image files, got {path} without any")
        return found
    if not path.is_file():
        raise ValueError(f"image file not found: {path}")
    return [path]


def _read_square(file: Path, size: int) -> Tensor:
    with decoded(file) as image:
        square = ImageOps.fit(image.convert("RGB"), (size, size))
    return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
