"""`passes=` of GraftingStep: how many passes each makes, and remembered maps against a slow reference."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.processes import run_in_two
from torch import Tensor, nn

import saligraft as sg
from saligraft.data.loader import crop_and_flip
from saligraft.methods import Compose, Cutout, MethodChoice
from saligraft.saliency.sources import FeatureMap

K, SIZE, CELLS = 4, 16, 4


class Network(nn.Module):
    """Batch norm, and a map of 4 × 4 cells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, K)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(dim=(2, 3)))


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(size: int = 8, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    stream = seeded(seed)
    images = torch.randn(size, 3, SIZE, SIZE, generator=stream)
    return images, torch.randint(K, (size,), generator=stream), torch.randperm(size, generator=stream)


def grafting(model: nn.Module, **options: Any) -> sg.GraftingStep:
    method = options.pop("method", sg.SaliencyGrafting(grids=(2, 4, 8), threshold=0.5))
    return sg.GraftingStep(model, method, **{"generator": seeded(), "layer": "features", **options})


def counted(model: Network) -> Counter[str]:
    """Passes through the network from now on."""
    counts: Counter[str] = Counter()
    model.features[0].register_forward_hook(lambda *_: counts.update(["forward"]))
    model.features[1].register_full_backward_hook(lambda *_: counts.update(["backward"]))
    return counts


@pytest.mark.parametrize(
    ("passes", "copies", "forward", "backward"),
    [("both", 1, 2, 2), ("both", 3, 4, 4), ("mixed", 1, 2, 1), ("mixed", 3, 4, 3), ("remembered", 1, 1, 1)],
)
def test_passes_are_as_many_as_promised(passes: Any, copies: int, forward: int, backward: int) -> None:
    model = Network()
    step = grafting(model, passes=passes, copies=copies)
    step(*batch()).loss.backward()  # the first call finds the layer
    counts = counted(model)
    for number in (1, 2):
        out = step(*batch())
        out.loss.backward()
        assert (counts["forward"], counts["backward"]) == (number * forward, number * backward)
        assert out.mixed is not None
        assert out.mixed.mask.any()


def test_mixed_is_training_on_grafts_by_maps_with_batch_statistics_and_without_a_trace() -> None:
    """Against the same step composed by hand from the public pieces."""
    model, (images, labels, _) = Network(), batch()
    nn.init.normal_(model.features[1].running_mean, std=3.0)  # far from the batch's
    twin = copy.deepcopy(model)
    out = grafting(model, passes="mixed")(images, labels)
    looking = copy.deepcopy(twin)
    with torch.no_grad():
        saliency = sg.feature_saliency(looking.features(images))
    mixed = sg.SaliencyGrafting(grids=(2, 4, 8), threshold=0.5)(images, labels, saliency, generator=seeded())
    logits = twin(mixed.images)
    assert torch.equal(out.mixed.images, mixed.images)
    assert torch.equal(out.logits, logits)
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(logits, mixed.targets(K)))
    assert all(torch.equal(*buffers) for buffers in zip(model.buffers(), twin.buffers(), strict=True))
    assert model.features[1].num_batches_tracked == 1
    own = FeatureMap(model, "features")
    assert grafting(model, layer=None, passes="mixed", saliency_source=own).source.mode == "eval"  # the user's choice


@pytest.mark.parametrize("copies", [1, 2])
def test_joint_is_one_pass_of_originals_and_grafts_as_one_batch(copies: int) -> None:
    model, (images, labels, _) = Network(), batch()
    twin = copy.deepcopy(model)
    step = grafting(model, passes="joint", copies=copies)
    out = step(images, labels)
    with torch.no_grad():
        saliency = sg.feature_saliency(copy.deepcopy(twin).features(images))
    method, generator = sg.SaliencyGrafting(grids=(2, 4, 8), threshold=0.5), seeded()
    mixed = [method(images, labels, saliency, generator=generator) for _ in range(copies)]
    logits = twin(torch.cat([images, *(part.images for part in mixed)]))
    targets = torch.cat([nn.functional.one_hot(labels, K).float(), *(part.targets(K) for part in mixed)])
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(logits, targets))
    assert torch.equal(out.logits, logits[: len(images)])
    assert all(torch.equal(*buffers) for buffers in zip(model.buffers(), twin.buffers(), strict=True))
    out.loss.backward()
    counts = counted(model)
    step(images, labels).loss.backward()
    assert (counts["forward"], counts["backward"]) == (2, 1)  # the second of all images


class Reference:
    """Remembered maps, pixel by pixel and sample by sample, in NumPy."""

    def __init__(self) -> None:
        self.maps: dict[int, np.ndarray] = {}

    def place(self, y: int, x: int, geometry: tuple[int, int, int]) -> tuple[int, int]:
        """The pixel of the frame that a pixel of the view shows."""
        top, left, flipped = geometry
        return y + top, (SIZE - 1 - x if flipped else x) + left

    def view(self, sample: int, geometry: tuple[int, int, int]) -> np.ndarray:
        if sample not in self.maps:
            return np.full((CELLS, CELLS), np.nan)
        result, side = np.zeros((CELLS, CELLS)), SIZE // CELLS
        for y, x in np.ndindex(SIZE, SIZE):
            row, column = self.place(y, x, geometry)
            if 0 <= row < SIZE and 0 <= column < SIZE:
                result[y // side, x // side] += self.maps[sample][row // side, column // side] / side**2
        return result

    def blend(self, sample: int, geometry: tuple[int, int, int], seen: np.ndarray, share: np.ndarray) -> None:
        total, weight, side = np.zeros((CELLS, CELLS)), np.zeros((CELLS, CELLS)), SIZE // CELLS
        for y, x in np.ndindex(SIZE, SIZE):
            row, column = self.place(y, x, geometry)
            if 0 <= row < SIZE and 0 <= column < SIZE:
                part = share[y // side, x // side] / side**2
                total[row // side, column // side] += part * seen[y // side, x // side]
                weight[row // side, column // side] += part
        if not weight.any():
            return
        value = np.divide(total, weight, where=weight > 0, out=np.zeros_like(total))
        known = sample in self.maps
        old = self.maps[sample] if known else np.full((CELLS, CELLS), total.sum() / weight.sum())
        rate = (0.5 if known else 1.0) * weight
        self.maps[sample] = ((1 - rate) * old + rate * value).astype(np.float16).astype(np.float64)

    def refresh(self, seen: Tensor, mixed: sg.MixedBatch | None, index: Tensor, geometry: Tensor) -> None:
        maps = (seen.double() / seen.double().mean()).numpy()
        share = np.zeros_like(maps)
        if mixed is not None:
            cells = mixed.mask.repeat_interleave(SIZE // mixed.mask.shape[1], 1)
            pixels = cells.repeat_interleave(SIZE // mixed.mask.shape[2], 2).double()
            share = nn.functional.avg_pool2d(pixels[:, None], SIZE // CELLS)[:, 0].numpy()
        partner = range(len(seen)) if mixed is None else mixed.partner.tolist()
        for i, sample in enumerate(index.tolist()):
            self.blend(sample, tuple(geometry[i].tolist()), maps[i], share[i])
        for i, j in enumerate(partner):
            self.blend(int(index[j]), tuple(geometry[j].tolist()), maps[i], 1 - share[i])


@pytest.mark.parametrize("warmup_steps", [0, 2])
def test_remembered_is_a_slow_reference(warmup_steps: int) -> None:
    """Five steps over ten samples: some without a map, most as source and as destination, cropped and flipped."""
    model, reference, stream = Network(), Reference(), seeded(2)
    stored = torch.randn(10, 3, SIZE, SIZE, generator=stream)
    all_labels = torch.randint(K, (10,), generator=stream)
    step = grafting(model, passes="remembered", warmup_steps=warmup_steps)
    method, draws, grafted = step.method, seeded(), 0.0
    for number in range(5):
        index = torch.randperm(10, generator=stream)[:6]
        corner = torch.randint(-3, 4, (6, 2), generator=stream)
        geometry = torch.cat([corner, torch.randint(2, (6, 1), generator=stream)], dim=1)
        images, labels = crop_and_flip(stored[index], geometry), all_labels[index]
        views = [reference.view(int(i), tuple(g.tolist())) for i, g in zip(index, geometry, strict=True)]
        twin = copy.deepcopy(model)
        out = step(images, labels, index, geometry)
        if number < warmup_steps:
            assert out.mixed is None
            shown = images
        else:
            saliency = torch.tensor(np.stack(views), dtype=torch.float32)
            expected = method.apply(images, labels, saliency, method.draw(images, generator=draws))
            assert torch.equal(out.mixed.mask, expected.mask)
            torch.testing.assert_close(out.mixed.source_weight, expected.source_weight, rtol=1e-3, atol=1e-3)
            shown, grafted = out.mixed.images, grafted + float(out.mixed.mask.float().mean())
        reference.refresh(sg.feature_saliency(twin.features(shown)), out.mixed, index, geometry)
        assert step.memory.known.nonzero()[:, 0].tolist() == sorted(reference.maps)
        for sample, expected_map in reference.maps.items():
            np.testing.assert_allclose(step.memory.maps[sample].double(), expected_map, rtol=3e-3, atol=1e-3)
        out.loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    assert grafted > 0.1


def test_a_sample_without_a_map_is_trained_on_as_it_is() -> None:
    model, (images, labels, _) = Network(), batch()
    step = grafting(model, passes="remembered")
    with sg.set_validation(True):  # an unknown map is no fault
        first = step(images, labels, torch.arange(8)).mixed
    assert torch.equal(first.images, images[first.partner])
    assert not first.mask.any()
    assert not first.source_weight.any()
    partly = step(images, labels, torch.tensor([0, 1, 2, 3, 4, 5, 6, 100])).mixed
    untouched = (partly.partner == 7) | (torch.arange(8) == 7)
    assert torch.equal(partly.images[untouched], images[partly.partner][untouched])
    assert not partly.source_weight[untouched].any()
    assert partly.mask[~untouched].any()
    assert step.memory.known.nonzero()[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 100]


def test_an_index_alone_serves_images_that_are_not_cropped() -> None:
    images, labels, index = batch()
    alone, placed = (grafting(Network(), passes="remembered") for _ in range(2))
    for _ in range(2):
        one = alone(images, labels, index)
        other = placed(images, labels, index=index, geometry=torch.zeros(8, 3, dtype=torch.int64))
    assert torch.equal(one.mixed.images, other.mixed.images)
    assert torch.equal(alone.memory.maps, placed.memory.maps)


def test_a_state_resumes_to_the_bit() -> None:
    model, memory = Network(), sg.SaliencyMemory(samples=8)
    step = grafting(model, passes="remembered", warmup_steps=1, memory=memory)
    for _ in range(2):
        step(*batch())
    resumed = grafting(copy.deepcopy(model), passes="remembered", warmup_steps=1, generator=torch.Generator())
    resumed.load_state_dict({**step.state_dict(), "memory": {k: v.clone() for k, v in memory.state_dict().items()}})
    one, other = step(*batch()), resumed(*batch())
    assert torch.equal(one.loss, other.loss)
    assert torch.equal(one.mixed.mask, other.mixed.mask)
    assert torch.equal(memory.maps, resumed.memory.maps)


def test_a_state_without_maps_is_refused_and_changes_nothing() -> None:
    both, remembered = (grafting(Network(), passes=passes) for passes in ("both", "remembered"))
    both(*batch()[:2])
    with pytest.raises(ValueError, match="state must be that of a step with passes='remembered'"):
        remembered.load_state_dict(both.state_dict())
    assert remembered.steps_taken == 0


def test_remembered_maps_do_not_depend_on_torch_s_default_device() -> None:
    images, labels, index = batch()
    losses = []
    for device in ("cpu", "meta"):  # "meta" stands for a GPU
        model = Network()
        with torch.device(device):
            step = grafting(model, passes="remembered", memory=sg.SaliencyMemory(samples=8))
            losses.append(torch.stack([step(images, labels, index=index).loss for _ in range(2)]))
    assert torch.equal(*losses)


def test_autocast_a_batch_of_one_and_float64() -> None:
    step = grafting(Network(), passes="remembered", warmup_steps=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            out = step(*batch(1))
    out.loss.backward()
    assert torch.equal(out.mixed.images, batch(1)[0])  # its own partner
    assert step.memory.maps.dtype == torch.float16
    double = grafting(Network().double(), passes="remembered")
    images, labels, index = batch()
    for _ in range(2):
        assert double(images.double(), labels, index).loss.dtype == torch.float64


def test_no_value_of_a_map_is_read_on_another_device() -> None:
    """On `meta`, where reading one is an error."""
    images, labels, index = (tensor.to("meta") for tensor in batch())
    for passes, memory in (("mixed", None), ("remembered", sg.SaliencyMemory(samples=8))):
        step = grafting(Network().to("meta"), passes=passes, memory=memory)
        for _ in range(2):
            assert step(images, labels, index).loss.is_meta


def test_a_call_without_an_index_says_what_is_needed_and_counts_no_step() -> None:
    step = grafting(Network(), passes="remembered")
    with pytest.raises(ValueError, match=r"index must be given to a step that remembers maps"):
        step(*batch()[:2])
    assert step.steps_taken == 0
    assert not step.memory.known.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": "all"}, "passes must be one of 'both', 'joint', 'mixed', 'remembered'; got 'all'"),
        ({"passes": "remembered", "copies": 2}, "copies must be 1 for passes='remembered', .* got 2"),
        ({"passes": "remembered", "saliency_source": "cam"}, "must be the feature map of the model itself .* ClassAct"),
        ({"passes": "remembered", "saliency_source": FeatureMap(Network()), "layer": None}, "of the model itself"),
        ({"passes": "remembered", "method": sg.CutMix(), "layer": None}, "'remembered' for CutMix, which uses no maps"),
        (
            {"passes": "remembered", "method": sg.PuzzleMix(), "saliency_source": "feature-map"},
            "'remembered' for PuzzleMix, which moves pixels",
        ),
        (
            {"passes": "remembered", "method": Compose([Cutout(size=4), sg.SaliencyGrafting()])},
            "'remembered' for Compose, whose transforms the maps would remember",
        ),
        ({"passes": "mixed", "memory": sg.SaliencyMemory()}, "memory must be left out unless passes='remembered'"),
        ({"passes": "mixed", "loss_weights": (0.5, 0.5)}, r"loss_weights must have 1 entries \(copies\), got 2"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grafting(Network(), **options)


def test_a_choice_among_steps_takes_mixed_and_refuses_remembered() -> None:
    choice = MethodChoice([None, sg.SaliencyGrafting()])
    assert sg.training_step(Network(), choice, passes="mixed").steps[1].passes == "mixed"
    with pytest.raises(ValueError, match="passes must not be 'remembered' in a choice among steps"):
        sg.training_step(Network(), choice, passes="remembered")


@pytest.mark.parametrize("method", [sg.AttentiveCutMix(), sg.RandomChoice([sg.SaliencyGrafting(), sg.Mixup()])])
def test_other_mixers_by_the_feature_map_remember_too(method: Any) -> None:
    step = grafting(Network(), passes="remembered", method=method, warmup_steps=1)
    for _ in range(4):
        out = step(*batch())
    out.loss.backward()
    assert step.memory.maps.isfinite().all()


def test_originals_can_be_trained_on_with_any_batch_mixer() -> None:
    step = sg.training_step(Network(), sg.CutMix(), passes="both", copies=2, loss_weights=(1, 1, 1))
    assert type(step) is sg.GraftingStep
    assert step(*batch()[:2]).mixed is not None
    others = {"plain training": None, "ManifoldMixup": sg.ManifoldMixup(), "AugMix": sg.AugMix()}
    for name, method in (others | {"PuzzleMix": sg.PuzzleMix(adversarial_probability=0.1)}).items():
        with pytest.raises(TypeError, match=f"passes must be left out for {name}, which is trained by "):
            sg.training_step(Network(), method, passes="both")


def half_of_the_samples(number: int, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch, index and geometry: samples move between the processes from step to step."""
    stream = seeded(number)
    index = torch.randperm(8, generator=stream)[rank::2]
    geometry = torch.cat([torch.randint(-3, 4, (8, 2), generator=stream), torch.ones(8, 1, dtype=torch.int64)], dim=1)
    images = torch.randn(8, 3, SIZE, SIZE, generator=seeded(9))[index]
    return images, index % K, index, geometry[index]


def two_processes(rank: int, folder: Path) -> None:
    model = nn.parallel.DistributedDataParallel(Network())  # one pass: broadcast_buffers may stay
    step = grafting(model, passes="remembered", warmup_steps=1, generator=seeded(rank))
    outs = [step(*half_of_the_samples(number, rank)) for number in range(4)]
    outs[-1].loss.backward()
    torch.save([step.memory.state_dict(), [tuple(out.mixed) for out in outs[1:]]], folder / f"{rank}.pt")


@pytest.mark.slow
def test_two_processes_remember_the_same(tmp_path: Path) -> None:
    run_in_two(two_processes, tmp_path)
    (first, grafts), (second, others) = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["known"].all()
    assert torch.equal(first["maps"], second["maps"])
    # Each process's grafts, shown again to a network alone, refresh a table as both processes together did.
    single, memory = Network(), sg.SaliencyMemory(samples=8)
    for number in range(4):
        halves = [half_of_the_samples(number, rank) for rank in (0, 1)]
        index, geometry = (torch.cat([half[part] for half in halves]) for part in (2, 3))
        mixed = [None, None] if number == 0 else [sg.MixedBatch(*part[number - 1]) for part in (grafts, others)]
        shown = [half[0] if part is None else part.images for half, part in zip(halves, mixed, strict=True)]
        seen = torch.cat([sg.feature_saliency(copy.deepcopy(single).features(images)) for images in shown])
        share = torch.zeros(8, CELLS, CELLS)
        partner = torch.arange(8)
        if number:
            spread = [nn.functional.interpolate(part.mask[:, None].float(), (SIZE, SIZE)) for part in mixed]
            share = nn.functional.avg_pool2d(torch.cat(spread), SIZE // CELLS)[:, 0]
            partner = torch.cat([mixed[0].partner, mixed[1].partner + 4])
        views = sg.saliency.memory.Views.of(torch.cat(shown), index, geometry)
        memory.refresh(seen, share, partner, views)
    torch.testing.assert_close(first["maps"].float(), memory.maps.float(), rtol=3e-3, atol=1e-3)


def test_a_disabled_step_refreshes_remembered_maps_as_warm_up_does() -> None:
    steps = [grafting(Network(), passes="remembered", warmup_steps=count) for count in (0, 2)]
    steps[0].enabled = False
    for step in steps:
        for _ in range(2):
            assert step(*batch()).mixed is None
    ours, warm = (step.memory.state_dict() for step in steps)
    assert ours.keys() == warm.keys()
    assert all(torch.equal(ours[name], warm[name]) for name in ours if isinstance(ours[name], Tensor))
    steps[0].enabled = True
    assert steps[0](*batch()).mixed.mask.any()
