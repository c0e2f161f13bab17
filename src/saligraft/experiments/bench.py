"""What the library costs, side by side with its peers: every number a count, or a ratio within one run.

A section is a function that yields rows; `SECTIONS` lists them. Contenders of a section run in turn, round by round
(`time_in_turn`). A row whose peer is not installed says so in place of its number.
Shapes: B batch, C channels, H W pixels, h w cells of the feature map.
"""

import functools
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.data import ImageData, load, make_data_loader
from saligraft.data.per_class_subset import per_class_subset
from saligraft.experiments.bench_instruments import (
    FEWEST_ROUNDS,
    MOST_OPERATIONS,
    count_operations,
    installed,
    operations_of,
    peak_bytes,
    time_in_turn,
)
from saligraft.experiments.bench_peers import dense_transport, per_image_loader, swap_levels
from saligraft.methods import REGISTRY, BatchMixer
from saligraft.methods.puzzlemix import (
    EnergyTerms,
    block_shares,
    mask_energy,
    move_blocks,
    optimal_levels,
    transport_plan,
)
from saligraft.methods.registry import methods_of
from saligraft.names import plural
from saligraft.networks import build_network
from saligraft.saliency import SALIENCY_SOURCES, fine_grained_saliency, saliency_source, spectral_residual_saliency
from saligraft.saliency.base import NetworkSource, SaliencySource
from saligraft.saliency.feature_map import sum_channels
from saligraft.training import SilentReporter, make_recipe, train

CLASSES = 100
IN_PLACE = "timm Mixup, in place"
Verdict = Literal["met", "missed", "reported", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured line.

    Args:
        section: A key of `SECTIONS`.
        name: What is measured.
        against: What it is divided by; "" for counts.
        values: One ratio per round, or one count; none where it could not be measured.
        at_most: Target; None where there is none.
        at_least: Likewise.
        note: Times behind the ratio, or why there is none.
    """

    section: str
    name: str
    against: str = ""
    values: tuple[float, ...] = ()
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def median(self) -> float | None:
        """The middle of the rounds; None where nothing was measured."""
        return statistics.median(self.values) if self.values else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The middle half of the rounds; None for a count."""
        if len(self.values) < 2:
            return None
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def verdict(self) -> Verdict:
        """Whether the median reaches the target."""
        if self.median is None:
            return "not measured"
        if self.at_most is None and self.at_least is None:
            return "reported"
        low = self.at_least is None or self.median >= self.at_least
        return "met" if low and (self.at_most is None or self.median <= self.at_most) else "missed"


@dataclass(frozen=True, kw_only=True)
class Size:
    """Images and the feature map that belongs to them.

    Args:
        batch: B.
        pixels: H and W.
        channels: C of the map.
        side: h and w of the map.
    """

    batch: int
    pixels: int
    channels: int
    side: int

    def __str__(self) -> str:
        return f"{self.batch}×3×{self.pixels}×{self.pixels}"

    def images(self) -> Tensor:
        """Random images (B, 3, H, W), always the same."""
        return torch.rand(self.batch, 3, self.pixels, self.pixels, generator=torch.Generator().manual_seed(0))

    def labels(self) -> Tensor:
        """Random class indices (B,)."""
        return torch.randint(CLASSES, (self.batch,), generator=torch.Generator().manual_seed(1))

    def features(self, *, relu: bool = True, channels_last: bool = False) -> Tensor:
        """A random map (B, C, h, w), as after a ReLU or signed."""
        stream = torch.Generator().manual_seed(2)
        features = torch.randn(self.batch, self.channels, self.side, self.side, generator=stream)
        features = features.relu_() if relu else features
        return features.to(memory_format=torch.channels_last) if channels_last else features


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How large and how long.

    Args:
        large: Size of ImageNet's images, with ResNet-50's map.
        small: Size of CIFAR's images, with WRN-28-10's map.
        networks: Name, batch, and pixels of the networks whose passes are timed.
        step_network: Of the steps of every method, with its batch.
        trained_network: Of the trainer.
        rounds: Of a section, unless its time is up.
        seconds: After which no further round of one measurement starts.
        puzzles: Batch of PuzzleMix's masks.
        bottom_up: Batch and pixels of the bottom-up maps.
        steps: Optimiser steps of an epoch of the trainer.
        workers: Of the per-image pipeline.
        backend: Of torch.compile.
        data_root: Folder of CIFAR-100's files; None for shapes rendered at its size.
    """

    large: Size = Size(batch=64, pixels=224, channels=2048, side=7)
    small: Size = Size(batch=128, pixels=32, channels=640, side=8)
    networks: tuple[tuple[str, int, int], ...] = (("wrn-16-2", 128, 32), ("resnet-50", 8, 224))
    step_network: tuple[str, int] = ("wrn-10-1", 64)
    trained_network: str = "wrn-10-2"
    rounds: int = 15
    seconds: float = 12.0
    puzzles: int = 32
    bottom_up: tuple[tuple[int, int], ...] = ((128, 32), (128, 224))
    steps: int = 6
    workers: int = 2
    backend: str = "inductor"
    data_root: Path | None = None

    @property
    def few_rounds(self) -> int:
        """Of what takes seconds."""
        return max(self.rounds // 3, 3)


QUICK = Setting(
    large=Size(batch=4, pixels=32, channels=16, side=4),
    small=Size(batch=4, pixels=16, channels=8, side=4),
    networks=(("wrn-10-1", 4, 16),),
    step_network=("wrn-10-1", 4),
    trained_network="wrn-10-1",
    rounds=3,
    seconds=1.0,
    puzzles=2,
    bottom_up=((2, 32),),
    steps=2,
    workers=1,
    backend="eager",
)

Contender = Callable[[], object]


def operations(setting: Setting) -> Iterator[Row]:
    """Count the operations of one `apply`, draws made before; of a peer those of a call, which draws too."""
    for name in methods_of(BatchMixer):
        count = operations_of(name)
        yield Row(section="operations", name=name, values=(count,), at_most=MOST_OPERATIONS.get(name))
    images, labels = setting.small.images(), setting.small.labels()
    for name, call in _peers(images, labels).items():
        values = () if call is None else (count_operations(call),)
        yield Row(
            section="operations",
            name=name,
            values=values,
            note=_missing(call, f"batch of {len(images)}, its draws included"),
        )


def steps_1_to_4(
    method: BatchMixer[Any], images: Tensor, labels: Tensor, features: Tensor, *, relu: bool = True
) -> sg.MixedBatch:
    """Saliency, draws, mask, graft and label weight: all that Saliency Grafting adds to two passes.

    Args:
        method: A batch mixer that takes maps.
        images: (B, C, H, W).
        labels: (B,).
        features: The originals' map (B, C, h, w).
        relu: Whether the map's layer is known to end in a ReLU, as a capture finds out.
    """
    saliency = sum_channels(features, nonnegative=relu)
    return method.apply(images, labels, saliency, method.draw(images))


def steps(setting: Setting) -> Iterator[Row]:
    """Time steps 1-4 against one copy of the images and one read of the features."""
    yield from _steps_at(setting, setting.large, eager=2.0, compiled=1.3)
    yield from _steps_at(setting, setting.small, eager=4.0, compiled=2.0)


def _steps_at(setting: Setting, size: Size, eager: float, compiled: float) -> Iterator[Row]:
    images, labels, method = size.images(), size.labels(), sg.SaliencyGrafting()
    floor = "images.clone() + features.sum()"
    compiles = setting.backend != "inductor" or shutil.which("g++") is not None
    for relu, channels_last in ((True, False), (True, True), (False, False), (False, True)):
        features = size.features(relu=relu, channels_last=channels_last)
        layout = f"{'after a ReLU' if relu else 'signed'}, {'channels last' if channels_last else 'contiguous'}"
        shape = f"{size}, map {size.channels}×{size.side}×{size.side} {layout}"
        contenders: dict[str, Contender] = {
            "floor": functools.partial(_floor, images, features),
            "eager": functools.partial(steps_1_to_4, method, images, labels, features, relu=relu),
        }
        if compiles:
            contenders["compiled"] = _compiled_steps(setting, images, labels, features, relu, (8, 4))
        seconds = time_in_turn(contenders, setting.rounds, setting.seconds)
        yield _ratio("steps", f"eager, {shape}", floor, seconds, "eager", "floor", at_most=eager)
        if not compiles:
            note = "no C++ compiler here"
            yield Row(section="steps", name=f"compiled, {shape}", against=floor, at_most=compiled, note=note)
            continue
        yield _ratio("steps", f"compiled, {shape}", floor, seconds, "compiled", "floor", at_most=compiled)
        if relu and not channels_last:  # what a graph costs that serves one grid alone
            contenders["compiled"] = _compiled_steps(setting, images, labels, features, relu, (8,))
            seconds = time_in_turn(contenders, setting.rounds, setting.seconds)
            yield _ratio("steps", f"compiled for one grid, {shape}", floor, seconds, "compiled", "floor")


def _compiled_steps(
    setting: Setting, images: Tensor, labels: Tensor, features: Tensor, relu: bool, grids: tuple[int, ...]
) -> Contender:
    """Steps 1-4 with all but the draws compiled, ready to run; what was compiled before is forgotten."""
    torch.compiler.reset()  # torch keeps eight graphs of a function, and each layout needs its own
    method = sg.SaliencyGrafting(grids=grids)

    def from_features(features: Tensor, drawn: Any) -> sg.MixedBatch:
        return method.apply(images, labels, sum_channels(features, nonnegative=relu), drawn)

    apply = torch.compile(from_features, backend=setting.backend)
    for grid in (*grids, *grids):
        apply(features, sg.SaliencyGrafting(grids=(grid,)).draw(images))
    return lambda: apply(features, method.draw(images))


def _floor(images: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum any method must do: write one batch of images, read the features once."""
    return images.clone(), features.sum()


def peers(setting: Setting) -> Iterator[Row]:
    """Time our mixers against those of other libraries; ours end with dense label rows, as torchvision's do."""
    yield from _peers_at(setting, setting.large, at_most=1.0)
    yield from _peers_at(setting, setting.small, at_most=None)


def _peers_at(setting: Setting, size: Size, at_most: float | None) -> Iterator[Row]:
    images, labels, saliency = size.images(), size.labels(), sg.feature_saliency(size.features())
    mixers: dict[str, BatchMixer[Any]] = {
        "Saliency Grafting": sg.SaliencyGrafting(),
        "CutMix": sg.CutMix(),
        "Mixup": sg.Mixup(),
    }
    contenders: dict[str, Contender] = {
        name: functools.partial(_mixed_rows, mixer, images, labels, saliency) for name, mixer in mixers.items()
    }
    theirs = _peers(images, labels)
    contenders |= {name: call for name, call in theirs.items() if call is not None}
    seconds = time_in_turn(contenders, setting.rounds, setting.seconds)
    for name in mixers:
        for peer, call in theirs.items():
            what, target = f"{name}, {size}", None if peer == IN_PLACE else at_most
            if call is None:
                yield Row(section="peers", name=what, against=peer, at_most=target, note=_missing(call))
            else:
                yield _ratio("peers", what, peer, seconds, name, peer, at_most=target)


def _mixed_rows(mixer: BatchMixer[Any], images: Tensor, labels: Tensor, saliency: Tensor) -> tuple[Tensor, Tensor]:
    mixed = mixer(images, labels, saliency)
    return mixed.images, mixed.targets(CLASSES)


def _peers(images: Tensor, labels: Tensor) -> dict[str, Contender | None]:
    """Mixers of other libraries, drawing and mixing; None for one that is not installed."""
    from torchvision.transforms import v2

    cutmix, mixup = v2.CutMix(num_classes=CLASSES), v2.MixUp(num_classes=CLASSES)
    peers: dict[str, Contender | None] = {
        "torchvision v2 CutMix": lambda: cutmix(images, labels),
        "torchvision v2 MixUp": lambda: mixup(images, labels),
        "kornia RandomCutMixV2": None,
        IN_PLACE: None,
    }
    if installed("kornia"):
        kornia = import_module("kornia.augmentation").RandomCutMixV2(
            data_keys=["input", "class"], use_correct_lambda=True
        )
        peers["kornia RandomCutMixV2"] = lambda: kornia(images, labels)
    if installed("timm"):
        timm = import_module("timm.data.mixup").Mixup(mixup_alpha=1.0, num_classes=CLASSES)
        own = images.clone()
        peers[IN_PLACE] = lambda: timm(own, labels)
    return peers


def share(setting: Setting) -> Iterator[Row]:
    """Time steps 1-4 by themselves against the two bare passes, forward and backward, of a training step."""
    for network, batch, pixels in setting.networks:
        yield _share_of(setting, network, batch, pixels)


def _share_of(setting: Setting, name: str, batch: int, pixels: int) -> Row:
    torch.manual_seed(0)
    network: Any = build_network(name, CLASSES).train()
    method = sg.SaliencyGrafting()
    images, labels = torch.rand(batch, 3, pixels, pixels), torch.randint(CLASSES, (batch,))
    with torch.no_grad():
        features = network.forward_features(images)
    repeats = 5  # against passes of seconds a single call is hardly seen by the clock
    contenders: dict[str, Contender] = {
        "steps": lambda: [steps_1_to_4(method, images, labels, features) for _ in range(repeats)],
        "passes": lambda: [_backward(network(images), labels) for _ in range(2)],
    }
    seconds = time_in_turn(contenders, setting.few_rounds, 2 * setting.seconds)
    seconds["steps"] = [each / repeats for each in seconds["steps"]]
    what = f"steps 1–4, {name}, {batch}×3×{pixels}×{pixels}"
    return _ratio("share", what, "two bare passes", seconds, "steps", "passes", at_most=0.02)


def _backward(logits: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def memory(setting: Setting) -> Iterator[Row]:
    """Measure the most bytes alive at once, the mixed batch included, against the mixed images alone."""
    for size in (setting.large, setting.small):
        images, labels, features = size.images(), size.labels(), size.features()
        for relu in (True, False):
            grids = {  # exact for a grid, so that the drawn one must not decide
                grid: peak_bytes(functools.partial(steps_1_to_4, method, images, labels, features, relu=relu))
                for grid, method in ((grid, sg.SaliencyGrafting(grids=(grid,))) for grid in sg.SaliencyGrafting().grids)
            }
            grid, peak = max(grids.items(), key=lambda item: item[1])
            what = f"steps 1–4, {'map after a ReLU' if relu else 'signed map'}, {size}"
            yield _memory_row(what, peak, images, at_most=1.2, note=f"grid {grid}, the largest")
        mixers: dict[str, BatchMixer[Any]] = {"CutMix": sg.CutMix(), "Mixup": sg.Mixup()}
        for name, mixer in mixers.items():
            peak = peak_bytes(functools.partial(mixer, images, labels))
            yield _memory_row(f"{name}, {size}", peak, images, at_most=1.2)
        for name, call in _peers(images, labels).items():
            if call is not None:
                yield _memory_row(f"{name}, {size}", peak_bytes(call), images, note="one draw")


def _memory_row(name: str, peak: int, images: Tensor, at_most: float | None = None, note: str = "") -> Row:
    values = (peak / images.nbytes,)
    return Row(section="memory", name=name, against="mixed images", values=values, at_most=at_most, note=note)


def solvers(setting: Setting) -> Iterator[Row]:
    """Time PuzzleMix's masks against gco, with transport against the authors' procedure; maps against OpenCV's."""
    for grid in (4, 8, 16):
        yield from _puzzle_rows(setting, grid)
    for batch, pixels in setting.bottom_up:
        yield from _bottom_up_rows(setting, batch, pixels)


def _puzzle_rows(setting: Setting, grid: int) -> Iterator[Row]:
    if not installed("scipy") or not installed("gco"):
        yield Row(section="solvers", name=f"PuzzleMix mask, {grid}×{grid} blocks", note="needs scipy and gco-wrapper")
        return
    images, shares, energy = _puzzle(setting.puzzles, grid)
    both = torch.cat((images, images.flip(0)))

    def moved(levels: Tensor, transport: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        visible = torch.cat((levels > 0, levels < 2))
        return transport(both, torch.cat((shares, shares.flip(0))), visible)

    def gathered(pixels: Tensor, shares: Tensor, visible: Tensor) -> Tensor:
        return move_blocks(pixels, transport_plan(shares, visible))

    contenders: dict[str, Contender] = {
        "gco": lambda: swap_levels(energy),
        "SciPy": lambda: optimal_levels(energy, "scipy"),
    }
    if installed("maxflow"):
        contenders["PyMaxflow"] = lambda: optimal_levels(energy, "pymaxflow")
    contenders["authors' procedure"] = lambda: moved(swap_levels(energy), dense_transport)
    contenders["mask and transport"] = lambda: moved(optimal_levels(energy), gathered)
    seconds = time_in_turn(contenders, setting.few_rounds, setting.seconds)
    target = 1.0 if grid == 16 else None
    blocks = f"{setting.puzzles} pairs, {grid}×{grid} blocks"
    default = "PyMaxflow" if installed("maxflow") else "SciPy"
    yield _ratio(
        "solvers",
        f"PuzzleMix mask, default solver ({default}), {blocks}",
        "gco",
        seconds,
        "gco",
        default,
        at_least=target,
    )
    if default != "SciPy":  # the target is for the solver that is used
        what = f"PuzzleMix mask, SciPy in place of {default}, {blocks}"
        yield _ratio("solvers", what, "gco", seconds, "gco", "SciPy")
    names = ("authors' procedure", "mask and transport")
    yield _ratio("solvers", f"PuzzleMix mask and transport, {blocks}", names[0], seconds, *names)


def _puzzle(batch: int, grid: int) -> tuple[Tensor, Tensor, Any]:
    """Smooth images with some noise, peaked saliency, 32 × 32 pixels; each paired with its mirror in the batch."""
    stream = torch.Generator().manual_seed(0)
    enlarge = functools.partial(nn.functional.interpolate, size=32, mode="bilinear")
    images = enlarge(torch.randn(batch, 3, 8, 8, generator=stream)) + 0.3 * torch.randn(
        batch, 3, 32, 32, generator=stream
    )
    peaks = enlarge(torch.rand(batch, 1, 5, 5, generator=stream) ** 3)[:, 0]
    shares = block_shares(peaks * torch.randn(batch, 32, 32, generator=stream).abs(), grid)
    partner, ratio = torch.arange(batch).flip(0), torch.rand(1, generator=stream).expand(batch)
    return images, shares, mask_energy(images, shares, partner, ratio, EnergyTerms())


def _bottom_up_rows(setting: Setting, batch: int, pixels: int) -> Iterator[Row]:
    """OpenCV sees one 8-bit image after the other, as it must."""
    kinds = {"fine-grained": fine_grained_saliency, "spectral residual": spectral_residual_saliency}
    if not installed("cv2"):
        for name in kinds:
            yield Row(section="solvers", name=f"{name} saliency", note="needs OpenCV with its contributed modules")
        return
    data = load("shapes", size=pixels, per_class=2)
    assert isinstance(data, ImageData)
    images = data.images[torch.arange(batch) % len(data)]
    floats, arrays = images / 255, [image.permute(1, 2, 0).flip(2).contiguous().numpy() for image in images]
    opencv = import_module("cv2").saliency
    theirs = {
        "fine-grained": opencv.StaticSaliencyFineGrained_create(),
        "spectral residual": opencv.StaticSaliencySpectralResidual_create(),
    }
    contenders: dict[str, Contender] = {}
    for name, ours in kinds.items():
        contenders[name] = functools.partial(ours, floats)
        contenders[f"OpenCV {name}"] = functools.partial(_each, theirs[name].computeSaliency, arrays)
    seconds = time_in_turn(contenders, setting.few_rounds, setting.seconds)
    for name in kinds:
        what = f"{name} saliency, {batch}×3×{pixels}×{pixels}"
        yield _ratio("solvers", what, "OpenCV", seconds, f"OpenCV {name}", name, at_least=1.0)


def _each(function: Callable[[Any], object], values: Iterable[Any]) -> list[object]:
    return [function(value) for value in values]


def methods(setting: Setting) -> Iterator[Row]:
    """Time an optimiser step of every method, and a pass with every saliency source, against plain training."""
    network, batch = setting.step_network
    images, labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))

    def optimizer_step(method: Any) -> Contender:
        torch.manual_seed(0)
        model = build_network(network, 10).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        step = sg.training_step(model, method, generator=torch.Generator().manual_seed(0))

        def take() -> None:
            optimizer.zero_grad()
            step(images, labels).loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return take

    contenders = {"plain": optimizer_step(None)}
    contenders |= {name: optimizer_step(entry.method()) for name, entry in REGISTRY.items()}
    seconds = time_in_turn(contenders, setting.few_rounds, setting.seconds)
    where = f"{network}, {batch}×3×32×32"
    for name in REGISTRY:
        yield _ratio("methods", f"step of {name}, {where}", "plain step", seconds, name, "plain")

    torch.manual_seed(0)
    model = build_network(network, 10).train()
    contenders = {"plain": lambda: _backward(model(images), labels)}

    def shared(source: SaliencySource) -> Tensor:
        return _backward(source.with_logits(model, images, labels)[0], labels)

    def alone(source: SaliencySource) -> tuple[Tensor, Tensor]:
        return source(images, labels), _backward(model(images), labels)

    for name in SALIENCY_SOURCES:
        source = saliency_source(name, model)
        contenders[f"{name}, from the training pass"] = functools.partial(shared, source)
        if isinstance(source, NetworkSource):
            contenders[f"{name}, by a pass of its own"] = functools.partial(alone, source)
    seconds = time_in_turn(contenders, setting.few_rounds, setting.seconds)
    for name in contenders:
        if name != "plain":
            yield _ratio("methods", f"pass with maps of {name}, {where}", "plain pass", seconds, name, "plain")


def trainer(setting: Setting) -> Iterator[Row]:
    """Compare the trainer's speed with a bare loop over tensors, and with per-image transforms in worker processes.

    On a CPU the network takes most of the time. The second, tiny network shows what loading costs where the network
    does not wait for the processor, as on a GPU.
    """
    batch = setting.small.batch
    data: dict[str, Any] = {"name": "shapes", "options": {"per_class": -(-setting.steps * batch // 10)}}
    if setting.data_root is not None:
        data = {
            "name": "cifar100",
            "root": str(setting.data_root),
            "per_class_subset": -(-setting.steps * batch // 100),
        }
    split = load(data["name"], root=data.get("root"), **data.get("options", {}))
    if "per_class_subset" in data:
        split = per_class_subset(split, data["per_class_subset"])
    assert isinstance(split, ImageData)
    loader = make_data_loader(split, batch_size=batch, train=True)
    files = per_image_loader(split, batch, setting.workers)
    normalised = torch.stack([split[place][0] for place in range(len(split))])

    def in_memory() -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.split(torch.randperm(len(split)), batch)[: len(loader)]:
            yield normalised[index], split.labels[index]

    theirs = f"per-image transforms, {plural(setting.workers, 'worker')}"
    own: dict[str, Any] = {"name": setting.trained_network}
    tiny: dict[str, Any] = {"name": "resnet-10-small", "options": {"width": 1, "stem_stride": 2}}
    for network, at_least in ((own, 0.97), (tiny, None)):
        training = {"epochs": 1, "batch_size": batch}
        recipe = make_recipe({"data": data, "network": network, "training": training})
        build = functools.partial(build_network, network["name"], split.num_classes, **network.get("options", {}))
        walls: dict[str, list[float]] = {"trainer": [], "bare": [], "per image": []}
        cpus: dict[str, list[float]] = {"trainer": [], "bare": [], "per image": []}
        start = time.perf_counter()
        for number in range(1 + setting.few_rounds):  # the first warms up
            if number > FEWEST_ROUNDS and time.perf_counter() - start > 2 * setting.seconds:
                break
            timing = train(recipe, reporter=SilentReporter()).timing[0]
            walls["trainer"].append(timing.seconds)
            cpus["trainer"].append(timing.cpu_seconds)
            for name, batches in (("bare", in_memory), ("per image", files.__iter__)):
                wall, cpu = _plain_epoch(build, batches)
                walls[name].append(wall)
                cpus[name].append(cpu)
        walls, cpus = ({name: each[1:] for name, each in times.items()} for times in (walls, cpus))
        fair = cpus if torch.get_num_threads() == 1 else walls
        tiny_note = " of width 1" if network is tiny else ""
        images = f"images/s, {data['name']}, {network['name']}{tiny_note}, batches of {batch}"
        yield _ratio("trainer", images, "bare loop over tensors", fair, "bare", "trainer", at_least=at_least)
        yield _ratio("trainer", images, theirs, walls, "per image", "trainer", at_least=1.5)
    alone = {"ours": lambda: _exhaust(loader), "theirs": lambda: _exhaust(files)}
    passes = [{name: _wall(run) for name, run in alone.items()} for _ in range(1 + setting.few_rounds)][1:]
    seconds = {name: [each[name] for each in passes] for name in alone}
    yield _ratio("trainer", f"images/s of the loader alone, {data['name']}", theirs, seconds, "theirs", "ours")


def _plain_epoch(
    build: Callable[[], nn.Module], batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]
) -> tuple[float, float]:
    """Wall and processor seconds of one epoch of the least code that trains."""
    torch.manual_seed(0)
    model = build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    wall, cpu = time.perf_counter(), time.process_time()
    for images, labels in batches():
        optimizer.zero_grad()
        _backward(model(images), labels)
        optimizer.step()
    return time.perf_counter() - wall, time.process_time() - cpu


def _exhaust(batches: Iterable[object]) -> None:
    for _ in batches:
        pass


def _wall(run: Contender) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _ratio(
    section: str, name: str, against: str, seconds: dict[str, list[float]], over: str, under: str,
    **target: float | None,
) -> Row:  # fmt: skip
    """The time of one contender over that of another, round by round."""
    values = tuple(a / b for a, b in zip(seconds[over], seconds[under], strict=True))
    times = (_milliseconds(statistics.median(seconds[each])) for each in (over, under))
    return Row(section=section, name=name, against=against, values=values, note="{} / {} ms".format(*times), **target)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def _missing(call: Contender | None, note: str = "") -> str:
    return "not installed" if call is None else note


SECTIONS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "operations": operations,
    "steps": steps,
    "peers": peers,
    "share": share,
    "memory": memory,
    "solvers": solvers,
    "methods": methods,
    "trainer": trainer,
}
