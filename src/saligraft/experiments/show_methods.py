"""Every method on the same pairs, as in the paper's Figure 1.

Each pair is a batch of two, source first, with fixed partners: draw, then apply. Images are normalised as in
training, so that Cutout's zero is the mean colour; each method sees the saliency that its authors use.
Shapes: C channels, H W pixels, h w cells of a map.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saligraft.checks import one_of
from saligraft.data import ImageData
from saligraft.data.keyed_draws import key
from saligraft.data.threads import one_thread
from saligraft.experiments.show import Lens, Scene
from saligraft.grafting import pixel_area
from saligraft.hooks import changed_output
from saligraft.methods import REGISTRY, BatchMixer, ManifoldMixup, SaliencyGrafting, StepStrategy, mix_features
from saligraft.methods.manifold_mixup.layers import INPUT
from saligraft.names import TOP_K, one_line
from saligraft.pixels import denormalized, normalized
from saligraft.reports import tiles
from saligraft.reports.figures import save_comparison, save_method
from saligraft.reports.gallery import ComparedPair, MethodSamples, Sample
from saligraft.reports.page import write_page
from saligraft.reports.run_report import method_title
from saligraft.saliency import SaliencyCapture, fine_grained_saliency, resize_saliency

ALL = "all"
FINE_GRAINED = "fine-grained"
PAIRS = 4
TYPICAL_RATIO = 0.5  # the mean of λ, for methods with a single result
SPARE_DRAWS = 8  # attempts per result to find a draw that shows both images
CUTOUT_SHARE = 0.5  # 16 of CIFAR's 32 pixels, whatever the size of the images shown


@dataclass(frozen=True, kw_only=True)
class Showing:
    """How a method is shown on the page.

    Args:
        results: Number of results.
        note: One line on what differs between results.
        title: The method's title, if not its usual one.
        typical_ratio: Whether λ is its mean instead of random.
    """

    results: int = 1
    note: str = ""
    title: str = ""
    typical_ratio: bool = False


# In the order of the page: results fill rows of eight, the pair's own four pictures first.
SHOWINGS: dict[str, Showing] = {
    "saliency-grafting": Showing(results=4, note="drawn again each time, label by visible saliency"),
    TOP_K: Showing(title="Grafting, top-k", note="always these cells"),
    "attentive-cutmix": Showing(note="always these cells"),
    "saliencymix": Showing(note="always this centre", typical_ratio=True),
    "puzzlemix": Showing(note="optimal for λ = ½", typical_ratio=True),
    "cutmix": Showing(results=3, note="a random box, label by its area"),
    "mixup": Showing(note="a random ratio"),
    "manifold-mixup": Showing(results=3, note="blends features inside the network, at a random layer"),
    "cutout": Showing(results=2, note="a random square, source only"),
    "augmix": Showing(results=3, note="three views of the source, one label"),
}
SALIENCY_NAMES = {
    "feature-map": "feature map",
    "input-gradient": "input gradient",
    FINE_GRAINED: "fine-grained",
}


class Pair(NamedTuple):
    """Two images of the pool as a batch (2,C,H,W), source first.

    Args:
        clean: Images in [0,1].
        images: Images normalised by the pool's statistics.
        labels: Class indices (2,).
        number: Key of the pair's draws.
    """

    clean: Tensor
    images: Tensor
    labels: Tensor
    number: int


def method_names() -> tuple[str, ...]:
    """Return all methods in the page's order; those without a `Showing` come last."""
    return tuple(dict.fromkeys((*SHOWINGS, *REGISTRY)))


def chosen_methods(words: str) -> tuple[str, ...]:
    """Parse the names of methods.

    Args:
        words: "all", or names separated by commas.

    Returns:
        The names in the page's order.
    """
    if words.strip() == ALL:
        return method_names()
    names = [name.strip() for name in words.split(",") if name.strip()]
    for name in names or [words]:
        one_of("methods", name, (ALL, *method_names()))
    return tuple(name for name in method_names() if name in names)


def build(name: str, data: ImageData) -> Any:
    """Build a method with its defaults, adapted to the data's statistics and image size.

    Args:
        name: The method's name.
        data: Images to be mixed.

    Returns:
        The method.
    """
    if name == TOP_K:
        return SaliencyGrafting(selection="top-k", grids=(8,), label_mixing="area")
    method, channels = REGISTRY[name].method, data.images.shape[1]
    mean, std = data.mean, data.std
    if issubclass(method, StepStrategy):  # its views are made and shown in [0, 1]
        mean, std = (0.0,) * channels, (1.0,) * channels
    options = method.data_options(mean, std)
    if name == "cutout":
        options["size"] = max(1, round(CUTOUT_SHARE * min(data.images.shape[-2:])))
    return method(**options)


def purposes(names: Sequence[str]) -> dict[str, str]:
    """Describe methods by the first line of their modules.

    Args:
        names: The methods' names.

    Returns:
        What each method does, by its title.
    """
    top_k = "Always the 6 most salient of 8 × 8 cells, label by area: the ablation of §5.4."
    return {
        SHOWINGS.get(name, Showing()).title or method_title(name): top_k if name == TOP_K else REGISTRY[name].purpose
        for name in names
    }


def choose_pairs(labels: Tensor, count: int) -> list[tuple[int, int]]:
    """Choose pairs of images, preferably of two classes, and of images and classes not shown yet.

    Args:
        labels: Class indices of the images.
        count: Number of pairs, as far as the images suffice.

    Returns:
        Indices (source, destination).
    """
    if len(labels) < 2:
        raise ValueError(f"images must be at least 2 to make a pair, got {len(labels)}")
    classes = labels.tolist()
    left = [(i, j) for i in range(len(classes)) for j in range(len(classes)) if i != j]
    pairs: list[tuple[int, int]] = []
    images: set[int] = set()
    shown: set[int] = set()
    while left and len(pairs) < count:

        def worth(pair: tuple[int, int]) -> tuple[bool, int, int]:
            kinds = {classes[i] for i in pair}
            return len(kinds) == 2, len(set(pair) - images), len(kinds - shown)  # noqa: B023  (called at once)

        best = max(left, key=worth)
        left.remove(best)
        pairs.append(best)
        images |= set(best)
        shown |= {classes[i] for i in best}
    return pairs


def write_comparison(scene: Scene, methods: str, pictures: Path | None = None) -> list[Path]:
    """Write methods.png and methods.html: several methods on the same pairs.

    Args:
        scene: Images, network and folder.
        methods: "all", or names separated by commas.
        pictures: Folder for one PNG file per method, or None.

    Returns:
        The files.
    """
    names, lenient = chosen_methods(methods), methods.strip() == ALL
    pairs = compare(names, scene.lens, scene.pool, count=scene.rows or PAIRS, seed=scene.seed, lenient=lenient)
    title = "Every method on the same pairs" if lenient else "Methods on the same pairs"
    page = scene.out / "methods.html"
    files = [
        save_comparison(pairs, scene.out / "methods.png"),
        write_page(page, "methods.html", title=title, pairs=pairs, purposes=purposes(names), **scene.values()),
    ]
    if pictures is not None:
        shown = [method.name for method in pairs[0].methods if method.samples]
        files += [save_method(pairs, name, pictures / f"{name}.png") for name in shown]
    return files


def compare(
    names: Sequence[str],
    lens: Lens,
    pool: ImageData,
    *,
    count: int,
    seed: int,
    lenient: bool = False,
    draws: int | None = None,
) -> list[ComparedPair]:
    """Apply every method to the same pairs.

    Args:
        names: The methods' names.
        lens: The network that provides saliency.
        pool: Images that pairs are chosen from.
        count: Number of pairs.
        seed: Seed of the draws.
        lenient: Whether to list a method that cannot run here with the reason instead of raising an error.
        draws: Results of each method, every one drawn at random; None for those of `SHOWINGS`.

    Returns:
        The pairs with every method's results.
    """
    compared = []
    for number, (i, j) in enumerate(choose_pairs(pool.labels, count)):
        clean = pool.images[[i, j]].float() / 255
        pair = Pair(clean, normalized(clean, pool.mean, pool.std), pool.labels[[i, j]], key(seed, number))
        with one_thread():
            methods = tuple(_samples(name, pair, lens, pool, lenient=lenient, draws=draws) for name in names)
        compared.append(
            ComparedPair(
                source=tiles.to_picture(clean[0]),
                destination=tiles.to_picture(clean[1]),
                source_class=pool.classes[int(pair.labels[0])],
                destination_class=pool.classes[int(pair.labels[1])],
                methods=methods,
            )
        )
    return compared


def _samples(name: str, pair: Pair, lens: Lens, pool: ImageData, *, lenient: bool, draws: int | None) -> MethodSamples:
    showing = SHOWINGS.get(name, Showing())
    if draws is not None:
        showing = replace(showing, results=draws, note="", typical_ratio=False)
    title = showing.title or method_title(name)
    try:
        method = build(name, pool)
        source, maps = _saliency(name, method, pair, lens, pool)
        results = _results(name, showing, method, pair, lens, pool, maps)
    except (ImportError, ValueError) as error:
        if not lenient:
            raise
        return MethodSamples(name=name, title=title, note=showing.note, missing=one_line(error))
    note = " · ".join(filter(None, (showing.note, SALIENCY_NAMES.get(source, source))))
    pictures = () if maps is None else tuple(map(tiles.heat, pair.clean, _at_grid(name, method, maps)))
    return MethodSamples(name=name, title=title, note=note, samples=tuple(results), maps=pictures)


def _saliency(name: str, method: Any, pair: Pair, lens: Lens, pool: ImageData) -> tuple[str, Tensor | None]:
    """The name of the saliency that the method's authors use, and its maps (2,h,w)."""
    if name == "saliencymix":
        return FINE_GRAINED, fine_grained_saliency(pair.images)
    if not getattr(method, "needs_saliency", False):
        return "", None
    labels = lens.labels_of(pair.clean, pair.labels, pool.classes)
    return method.saliency_source, lens.saliency(pair.clean, method.saliency_source, labels)


def _at_grid(name: str, method: Any, maps: Tensor) -> Tensor:
    """The maps to show: at the method's grid if it is fixed, otherwise at the network's resolution."""
    grid = 8 if name == TOP_K else getattr(method, "grid", None)
    return maps if grid is None else resize_saliency(maps, grid)


def _results(
    name: str, showing: Showing, method: Any, pair: Pair, lens: Lens, pool: ImageData, maps: Tensor | None
) -> list[Sample]:
    if isinstance(method, StepStrategy):
        views = method.views(pair.clean, generator=_generator(name, pair, 0))
        return [Sample(picture=_enlarged(view[0]), source_weight=None) for view in views[: showing.results]]
    if isinstance(method, BatchMixer):
        return _mixed_samples(name, showing, method, pair, pool, maps)
    samples = []
    for draw in range(showing.results):
        generator = _generator(name, pair, draw)
        if isinstance(method, ManifoldMixup):
            samples.append(_feature_sample(method, pair, lens, generator, place=draw))
        else:
            image = denormalized(method(pair.images, generator=generator)[0], pool.mean, pool.std)
            samples.append(Sample(picture=_enlarged(image), source_weight=None))
    return samples


def _mixed_samples(
    name: str, showing: Showing, method: BatchMixer[Any], pair: Pair, pool: ImageData, maps: Tensor | None
) -> list[Sample]:
    """The first draws that show both images, as many as fit on the page; otherwise the first ones."""
    preferred: list[Sample] = []
    others: list[Sample] = []
    for draw in range(SPARE_DRAWS * showing.results):
        generator = _generator(name, pair, draw)
        sample, shows_both = _mixed_sample(method, pair, pool, maps, generator, typical=showing.typical_ratio)
        (preferred if shows_both else others).append(sample)
        if len(preferred) == showing.results:
            return preferred
    return [*preferred, *others][: showing.results]


def _mixed_sample(
    method: BatchMixer[Any],
    pair: Pair,
    pool: ImageData,
    maps: Tensor | None,
    generator: torch.Generator,
    *,
    typical: bool,
) -> tuple[Sample, bool]:
    """One draw of a batch mixer, with the other image of the pair as partner, and whether both images show."""
    partner = torch.tensor([1, 0])
    drawn: Any = method.draw(pair.images, generator=generator)._replace(partner=partner)
    if typical:
        drawn = drawn._replace(ratio=torch.full((2,), TYPICAL_RATIO))
    mixed = method.apply(pair.images, pair.labels, maps, drawn)
    detail = ""
    if isinstance(method, SaliencyGrafting) and method.label_mixing == "saliency":
        area = float(pixel_area(mixed.mask, *pair.images.shape[-2:])[0])
        detail = f"area {100 * area:.0f} %"
    picture = tiles.grafted(denormalized(mixed.images[0], pool.mean, pool.std), mixed.mask[0])
    sample = Sample(picture=picture, source_weight=float(mixed.source_weight[0]), detail=detail)
    return sample, 0.0 < float(mixed.mask[0].float().mean()) < 1.0


def _feature_sample(method: ManifoldMixup, pair: Pair, lens: Lens, generator: torch.Generator, *, place: int) -> Sample:
    """One draw of Manifold Mixup, its layers in turn: the blended input, or Σ_c |A_c| of the blended features."""
    view = lens.view(pair.clean)
    layers = method.layers_of(lens.network, view)
    drawn = method.draw(view, layers, generator=generator)
    drawn = drawn._replace(partner=torch.tensor([1, 0]), layer=layers[place % len(layers)])
    weight = float(drawn.source_weight[0])
    if drawn.layer == INPUT:
        blend = mix_features(pair.clean, partner=drawn.partner, source_weight=drawn.source_weight)
        return Sample(picture=_enlarged(blend[0]), source_weight=weight, detail="input, as Mixup")

    def blended(output: Any) -> Tensor:
        return mix_features(output, partner=drawn.partner, source_weight=drawn.source_weight)

    with torch.no_grad(), changed_output(lens.network, drawn.layer, blended):
        maps = SaliencyCapture(lens.network, drawn.layer)(view)[1]
    return Sample(picture=tiles.plain_heat(maps[0]), source_weight=weight, detail=f"at {drawn.layer}")


def _generator(name: str, pair: Pair, draw: int) -> torch.Generator:
    """Keyed by the method's name, so that its draws do not depend on the other methods shown."""
    return torch.Generator().manual_seed(key(pair.number, zlib.crc32(name.encode()), draw))


def _enlarged(image: Tensor) -> tiles.Picture:
    return tiles.enlarge(tiles.to_picture(image))
