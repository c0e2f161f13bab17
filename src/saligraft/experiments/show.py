"""Visualise a method: mix pairs from a data set or from image files, and draw the result as PNG or interactive page.

A lens is the network whose feature maps serve as saliency: that of a finished run, a pretrained one of timm or
torchvision, another one by name, untrained, or by default one trained on `shapes` in about half a minute and kept in
the cache. The page says which.
"""

import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import ImageOps
from torch import Tensor, nn

from saligraft import __version__
from saligraft.config.recipe_file import dump_recipe
from saligraft.data import ImageData, Split
from saligraft.data.cache import cache_folder, content_key
from saligraft.data.files import image_files
from saligraft.data.image_files import decoded, image_software
from saligraft.data.keyed_draws import key
from saligraft.data.threads import one_thread
from saligraft.io.locks import locked
from saligraft.names import one_line, plural
from saligraft.networks import build_network
from saligraft.pixels import normalized
from saligraft.reports.explorer import IMAGES, explorer_data, varied
from saligraft.reports.figures import SOFTWARE, save_gallery
from saligraft.reports.gallery import GalleryRow, Mixer, draw_rows, most_balanced
from saligraft.reports.page import typed_command, versions, write_page
from saligraft.reports.run_report import method_title
from saligraft.saliency import saliency_source
from saligraft.saliency.capture import logits_of
from saligraft.training import Recipe, load_recipe, load_run, train
from saligraft.training.run_folder import MARKER, MODEL, RECIPE, RESULT
from saligraft.training.setup import load_split

POOL = 64  # images that pairs are drawn from: enough to choose from, fast for any network
QUICK_EPOCHS = 14
ROWS = 6


@dataclass(frozen=True, kw_only=True)
class Lens:
    """A network as a source of saliency, with the input it expects.

    Args:
        network: The network, in evaluation mode.
        mean: Channel means of its input.
        std: Channel standard deviations of its input.
        size: Height and width it was trained at; None to use images at their own size.
        origin: One line on where the network comes from.
        classes: Classes of its logits.
    """

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None
    origin: str
    classes: tuple[str, ...] = ()

    def describe(self) -> str:
        """The line for the page: where the network comes from, and its input size."""
        if self.size is None:
            return self.origin
        return f"{self.origin}; its input is {self.size[0]}×{self.size[1]} pixels"

    def view(self, images: Tensor) -> Tensor:
        """Resize and normalise images (B,C,H,W) in [0,1] as the network expects them."""
        if self.size is not None and tuple(images.shape[-2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bilinear", antialias=True, align_corners=False)
        return normalized(images, self.mean, self.std)

    def saliency(self, images: Tensor, source: str = "feature-map", labels: Tensor | None = None) -> Tensor:
        """Compute maps (B,h,w) of images (B,C,H,W) in [0,1], of any size."""
        return saliency_source(source, self.network)(self.view(images), labels)

    def labels_of(self, images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Tensor:
        """Return the labels if they index the network's classes, otherwise the classes it predicts."""
        if classes == self.classes:
            return labels
        with torch.no_grad():
            return logits_of(self.network(self.view(images))).argmax(1)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The images, the network and the output folder of a visualisation.

    Args:
        pool: Images that pairs are drawn from.
        lens: The network that provides saliency.
        out: Folder to write to.
        rows: Number of pairs; None for the page's default.
        seed: Seed of pairs and draws.
    """

    pool: ImageData
    lens: Lens
    out: Path
    rows: int | None
    seed: int

    def facts(self, count: int | None = None) -> dict[str, str]:
        """Facts for the page about how it was made; `count` is the number of images shown, by default the pool's."""
        height, width = self.pool.images.shape[-2:]
        images = f"{count or len(self.pool)} of {self.pool.name}, {height}×{width} pixels"
        facts = {"Command": typed_command(), "Images": images, "Saliency": self.lens.describe()}
        if self.lens.classes != self.pool.classes:
            facts["Classes"] = "unknown to the network: gradients use the predicted class"
        return {**facts, **versions()}

    def explorer(self, count: int = IMAGES) -> dict[str, Any]:
        """What `explorer.html` shows of up to `count` images of the pool, of as many classes as possible."""
        data, lens = self.pool.take(varied(self.pool.labels, count)), self.lens
        images = data.images.float() / 255
        labels = lens.labels_of(images, data.labels, data.classes)
        with one_thread():
            return explorer_data(
                images,
                data.labels,
                data.classes,
                lens.saliency(images),
                gradients=lens.saliency(images, "input-gradient", labels),
                objects=data.masks,
                origin=re.sub(r" \([^)]*/[^)]*\)", "", lens.describe()),  # without the folder, which the facts name
            )

    def values(self) -> dict[str, Any]:
        """What a page of pairs shows beside them."""
        described = {"data": self.pool.name, "network": self.lens.describe()}
        return {**described, "facts": self.facts(), "explorer": self.explorer()}


def write_gallery(scene: Scene, name: str, mixer: Mixer) -> list[Path]:
    """Write gallery.png and gallery.html of one method.

    Args:
        scene: Images, network and folder.
        name: The method's name.
        mixer: The method.

    Returns:
        The files.
    """
    rows = draw_gallery(scene, mixer)
    page, title = scene.out / "gallery.html", f"{method_title(name)}, pair by pair"
    return [
        save_gallery(rows, scene.out / "gallery.png"),
        write_page(page, "gallery.html", title=title, rows=rows, best_row=most_balanced(rows), **scene.values()),
    ]


def write_explorer(scene: Scene) -> Path:
    """Write the view as a page of its own.

    Args:
        scene: Images and network; `out` is the file, `rows` the number of images.

    Returns:
        The file.
    """
    data = scene.explorer(scene.rows or IMAGES)
    facts = scene.facts(len(data["images"]))
    return write_page(scene.out, "explore.html", title="Saliency Grafting, hands on", explorer=data, facts=facts)


def scene_of_run(folder: Path, out: Path, rows: int | None = None) -> Scene:
    """Prepare a visualisation of a finished run: its network, and test images of its data.

    Args:
        folder: Folder of the run.
        out: Folder to write to.
        rows: Number of pairs; None for the page's default.

    Returns:
        The scene, with seed 0.
    """
    pool = choose(load_split(load_recipe(folder / RECIPE), "test"), POOL, seed=0)
    return Scene(pool=pool, lens=network_of_run(folder), out=out, rows=rows, seed=0)


def view_of_run(folder: Path) -> dict[str, Any]:
    """Compute the interactive view of a finished run, for a page that can do without it.

    Args:
        folder: Folder of the run.

    Returns:
        `explorer` for the page; nothing without a trained network, and with a warning where its data cannot be read.
    """
    if not (folder / MODEL).is_file():
        return {}
    try:
        return {"explorer": scene_of_run(folder, folder).explorer()}
    except Exception as error:
        warnings.warn(f"the interactive view could not be created: {one_line(error)}", stacklevel=2)
        return {}


def choose(data: Split, count: int, seed: int) -> ImageData:
    """Sample up to `count` images at random.

    Args:
        data: Any split of a data set.
        count: Number of images.
        seed: Seed of the choice.

    Returns:
        The images, in memory.
    """
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(key(seed)))[:count]
    return data.take(order)


def draw_gallery(scene: Scene, method: Mixer) -> list[GalleryRow]:
    """Mix pairs of the scene's images with its network's saliency.

    Args:
        scene: Images and network.
        method: A batch mixer.

    Returns:
        The rows of the gallery.
    """
    lens, pool = scene.lens, scene.pool
    images = pool.images.float() / 255
    saliency = None
    if getattr(method, "needs_saliency", False):
        labels = lens.labels_of(images, pool.labels, pool.classes)
        saliency = lens.saliency(images, getattr(method, "saliency_source", "feature-map"), labels)
    maps_and_objects = {"saliency": saliency, "objects": pool.masks}
    count = scene.rows or ROWS
    return draw_rows(method, images, pool.labels, pool.classes, **maps_and_objects, count=count, seed=scene.seed)


def network_of_run(folder: Path) -> Lens:
    """Load the trained network of a run folder.

    Args:
        folder: Folder of a finished run.

    Returns:
        The network as a lens.
    """
    run = load_run(folder)
    recipe, inputs = run.recipe, run.inputs
    epochs = plural(recipe.training.epochs, "epoch")
    origin = f"{recipe.network.name}, trained for {epochs} on {recipe.data.name} ({folder})"
    size = inputs.image_shape[1:]
    return Lens(
        network=run.network.cpu(), mean=inputs.mean, std=inputs.std, size=size, origin=origin, classes=inputs.classes
    )


def untrained_network(name: str, data: ImageData, seed: int) -> Lens:
    """Build a network by name with random weights; its maps show contrast, not objects, and its origin says so.

    Args:
        name: Name of the network.
        data: Images to compute maps of.
        seed: Seed of the weights.

    Returns:
        The network as a lens.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(name, max(data.num_classes, 2), in_channels=data.images.shape[1])
    origin = f"{name} with random weights: untrained, so its map follows contrast rather than objects"
    return Lens(network=network.eval(), mean=data.mean, std=data.std, size=None, origin=origin, classes=data.classes)


def pretrained_network(name: str) -> Lens:
    """Load a network of timm or torchvision with the weights that its library offers, downloaded on first use.

    Args:
        name: "timm:NAME" or "torchvision:NAME".

    Returns:
        The network as a lens.
    """
    library, _, model = name.partition(":")
    with torch.device("meta"):
        build_network(name, 2)  # raises on an unknown name
    classes: Sequence[str] = ()
    logging.disable(logging.WARNING)  # timm's hub logs each of its many attempts
    try:
        if library == "timm":
            import timm

            network = timm.create_model(model, pretrained=True)
            view = timm.data.resolve_model_data_config(network)
            mean, std, size = view["mean"], view["std"], view["input_size"][1:]
        else:
            from torchvision.models import get_model, get_model_weights

            weights = get_model_weights(model).DEFAULT
            network, classes = get_model(model, weights=weights), weights.meta["categories"]
            view = weights.transforms()
            mean, std, size = view.mean, view.std, 2 * view.crop_size
    except Exception as error:  # of any type: no connection, no weights of this model, no room on the disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"pretrained weights of {name} cannot be loaded ({reason}); they are downloaded on first use, so without "
            "a connection use --run RUN"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    return Lens(
        network=network.eval(),
        mean=tuple(mean),
        std=tuple(std),
        size=(size[0], size[1]),
        origin=f"{name} with its library's pretrained weights",
        classes=tuple(classes),
    )


def quick_network(fallback: Path) -> Lens:
    """Train a small network on `shapes` in about half a minute, or load the one trained before from the cache.

    Args:
        fallback: Run folder to use if there is no folder for caches.

    Returns:
        The network as a lens.
    """
    recipe = quick_recipe()
    try:
        folder = cache_folder() / f"show-network-{content_key([dump_recipe(recipe), __version__])}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # pathlib raises RuntimeError for a user without a home
        folder = fallback
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")), one_thread():
        if not all((folder / name).is_file() for name in (RECIPE, MODEL, RESULT)):
            train(recipe, out=folder, overwrite=True)
    origin = f"{recipe.network.name}, a small network trained for {QUICK_EPOCHS} epochs on shapes, as an illustration"
    return replace(network_of_run(folder), origin=origin)


def quick_recipe() -> Recipe:
    """Return the recipe of a short plain run: enough for maps that find objects, not for a good classifier."""
    sizes = [
        "title=A quick network for saliency",
        "network.name=wrn-10-1",
        f"training.epochs={QUICK_EPOCHS}",
        "training.batch_size=20",
    ]
    return load_recipe("shapes-wrn-10-2", sizes, seed=0)


def read_images(paths: Sequence[Path], size: int) -> ImageData:
    """Read image files, cropped to squares of one size.

    Args:
        paths: Image files, and folders of them; unreadable files in folders are skipped with a warning.
        size: Height and width in pixels.

    Returns:
        The images as a data set. Classes are the names of the files; those of their folders for files in folders below
        one of `paths`, and where several files have one name or mere numbers. In a single folder, numbers are
        prefixed with its name.
    """
    readable: list[tuple[Path, Path]] = []
    squares = []
    found = [(file, path) for path in paths for file in image_files(path) if file == path or not is_own_picture(file)]
    for file, path in {file.resolve(): (file, path) for file, path in found}.values():
        try:
            squares.append(_read_square(file, size))
        except ValueError as error:
            if file == path:
                raise
            warnings.warn(f"skipped: {error}", stacklevel=2)
        else:
            readable.append((file, path))
    if len(readable) < 2:
        raise ValueError(f"images must name at least 2 files, got {len(readable)}")
    stems = [file.stem for file, path in readable if file.parent in (path, path.parent)]
    by_folder = len(set(stems)) < len(stems) or any(stem.isdecimal() for stem in stems)
    by_folder = by_folder and len({file.parent.resolve() for file, _ in readable}) > 1
    names: list[str] = []
    for file, path in readable:
        folder, below = file.parent.resolve().name, file.parent not in (path, path.parent)
        stem = f"{folder} {file.stem}" if file.stem.isdecimal() else file.stem
        names.append(_class_name(folder if below or by_folder else stem))
    classes = tuple(sorted(set(names)))
    images = torch.stack(squares)
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
    """The name of a folder or file as words, without a leading number: `025.Pelagic_Cormorant`."""
    return re.sub(r"^\d+[._ -]+(?=.)", "", name).replace("_", " ")


def is_own_picture(file: Path) -> bool:
    """Return whether saligraft wrote a picture.

    Args:
        file: The picture.
    """
    if (file.parent / MARKER).exists():
        return True
    try:
        return image_software(file) == SOFTWARE
    except ValueError:  # damaged: reported when it is read
        return False


def _read_square(file: Path, size: int) -> Tensor:
    with decoded(file) as image:
        square = ImageOps.fit(image.convert("RGB"), (size, size))
    return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
