"""A pretended GPU: with draws made outside, nothing that a step runs reads a value, or leaves the device.

`FakeTensorMode` has shapes and devices but no values: `.item()`, `nonzero` and branches on data raise. It does not mind
a CPU index into a CUDA tensor, nor a copy from the host at every step, so `OneDevice` looks at every argument.
Methods and sources are tested with the statistics of a data set, too: making a tensor of them is such a copy.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import saligraft as sg
from saligraft import methods, saliency
from saligraft.experiments.label_truth import cell_entropy
from saligraft.methods import REGISTRY, BatchMixer, RandomChoice
from saligraft.methods.augmix.method import AugMixDraws, augmix
from saligraft.methods.puzzlemix.noise import PixelScale, adversarial, noisy_start
from saligraft.methods.registry import methods_of
from saligraft.saliency import SALIENCY_SOURCES
from saligraft.saliency.memory import Views, resample
from saligraft.training.localization import box_iou
from saligraft.training.results import batch_sums

B, K = 4, 5
IMAGES = torch.rand(B, 3, 16, 20, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 4, 2, 2])
ROWS = torch.eye(K)[LABELS]
MAPS = torch.rand(B, 8, 8, generator=torch.Generator().manual_seed(1))
FEATURES = torch.randn(B, 6, 8, 8, generator=torch.Generator().manual_seed(2))
LOGITS = torch.randn(B, K, generator=torch.Generator().manual_seed(3))
STATISTICS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}
PARTNER, WEIGHT = torch.tensor([2, 0, 3, 1]), torch.tensor([0.0, 0.3, 0.7, 1.0])

# Mixing on the host by design.
EXEMPT_METHODS = {"puzzlemix": "solves its masks on the host"}
# Sources are exempt that take gradients, or whose call by itself is a pass of a network.
EXEMPT_SOURCES = {
    "feature-map": "a network's pass; feature_saliency is here",
    "cam": "a network's pass; class_activation_map is here",
    "grad-cam": "takes a gradient; gradient_activation_map is here",
    "input-gradient": "takes a gradient; gradient_saliency is here",
}
CHOICES: dict[str, BatchMixer[Any]] = {
    "cutmix half the time": sg.CutMix(probability=0.5, per="batch"),
    "top-k": sg.SaliencyGrafting(selection="top-k"),
    "area labels": sg.SaliencyGrafting(label_mixing="area", grids=(7,)),
    "attentive cutmix at the map's own grid": sg.AttentiveCutMix(grid=None),
    "saliencymix per batch": sg.SaliencyMix(per="batch"),
    "choice per sample": RandomChoice([sg.Mixup(), sg.CutMix(), sg.SaliencyGrafting(), None], per="sample"),
    "composition": sg.Compose([sg.Cutout(size=4), sg.SaliencyGrafting()]),
    "saliencymix of normalised images": sg.SaliencyMix(**sg.SaliencyMix.data_options(**STATISTICS)),
}
MIXERS = {name: kind() for name, kind in methods_of(BatchMixer).items() if name not in EXEMPT_METHODS} | CHOICES


def remembered(images: Tensor, maps: Tensor, partner: Tensor, table: Tensor, geometry: Tensor) -> tuple[Tensor, ...]:
    """Maps looked up and refreshed, in a table of given size."""
    memory = sg.SaliencyMemory(samples=len(table))
    memory.load_state_dict({"maps": table, "known": table[:, 0, 0] > 0})
    views = Views.of(images, partner, geometry)
    looked_up = memory.look_up(views)
    memory.refresh(maps, resample(maps, (maps.shape[1], maps.shape[2])), partner, views)
    return looked_up, memory.maps, memory.known


def augmix_views(images: Tensor, drawn: AugMixDraws, **options: Any) -> tuple[Tensor, ...]:
    """The views of AugMix for draws made outside."""
    with patch.object(sg.AugMix, "draw", return_value=drawn):
        return sg.AugMix(**STATISTICS, **options).views(images)


AUGMIX_DRAWS = sg.AugMix().draw(IMAGES, generator=torch.Generator().manual_seed(0))
SCALE = PixelScale(**STATISTICS)
# Every other function that a step runs on the device, with its arguments.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "feature_saliency": (sg.feature_saliency, (FEATURES,)),
    "resize_saliency": (lambda maps: [sg.resize_saliency(maps, grid) for grid in (4, 7, 8, 16)], (MAPS,)),
    "class_activation_map": (saliency.class_activation_map, (FEATURES, torch.rand(K, 6), LABELS)),
    "gradient_activation_map": (saliency.gradient_activation_map, (FEATURES, FEATURES)),
    "gradient_saliency": (saliency.gradient_saliency, (FEATURES,)),
    "remembered maps": (remembered, (IMAGES, MAPS, PARTNER, MAPS.half(), torch.zeros(B, 3, dtype=torch.int64))),
    "remembered maps of image files": (
        remembered,
        (IMAGES, MAPS, PARTNER, MAPS.half(), torch.ones(B, 7, dtype=torch.int64)),
    ),
    "fine-grained": (SALIENCY_SOURCES["fine-grained"](), (IMAGES,)),
    "spectral-residual": (SALIENCY_SOURCES["spectral-residual"](), (IMAGES,)),
    "fine-grained of normalised images": (SALIENCY_SOURCES["fine-grained"](**STATISTICS), (IMAGES,)),
    "spectral-residual of normalised images": (SALIENCY_SOURCES["spectral-residual"](**STATISTICS), (IMAGES,)),
    "spectral-residual of large images": (saliency.spectral_residual_saliency, (torch.rand(2, 3, 130, 130),)),
    "cutout": (sg.Cutout().apply, (IMAGES, sg.Cutout().draw(IMAGES))),
    "manifold-mixup": (
        lambda f, j, w: methods.mix_features(f, partner=j, source_weight=w),
        (FEATURES, PARTNER, WEIGHT),
    ),
    "augmix": (augmix, (IMAGES, AUGMIX_DRAWS)),
    "augmix's views": (augmix_views, (IMAGES, AUGMIX_DRAWS)),
    "augmix's views of normalised images": (
        lambda *given: augmix_views(*given, normalized=True),
        (IMAGES, AUGMIX_DRAWS),
    ),
    "puzzlemix's start of the noise": (lambda x, u: noisy_start(x, u, SCALE), (IMAGES, IMAGES)),
    "puzzlemix's noise": (lambda x, start, slope: adversarial(x, start, slope, 0.5, SCALE), (IMAGES, IMAGES, IMAGES)),
    "jensen_shannon_loss": (methods.jensen_shannon_loss, (LOGITS, -LOGITS, LOGITS.flip(0))),
    "mixed_cross_entropy": (
        sg.mixed_cross_entropy,
        (LOGITS, sg.MixedBatch(IMAGES, LABELS, LABELS[PARTNER], WEIGHT, MAPS < 0.5, PARTNER)),
    ),
    "mixed_cross_entropy of rows": (
        sg.mixed_cross_entropy,
        (LOGITS, sg.MixedBatch(IMAGES, ROWS, ROWS[PARTNER], WEIGHT, MAPS < 0.5, PARTNER)),
    ),
    "mixed_binary_cross_entropy": (
        sg.mixed_binary_cross_entropy,
        (LOGITS, sg.MixedBatch(IMAGES, ROWS, ROWS[PARTNER], WEIGHT, MAPS < 0.5, PARTNER)),
    ),
    "batch_sums": (batch_sums, (LOGITS, LABELS)),
    "unmixed": (sg.MixedBatch.unmixed, (IMAGES, LABELS)),
    "targets": (
        lambda *parts: sg.MixedBatch(*parts).targets(K),
        (IMAGES, LABELS, LABELS[PARTNER], WEIGHT, MAPS < 0.5, PARTNER),
    ),
}


class NoDoubles(TorchDispatchMode):
    """Refuses float64 anywhere but on the CPU, as MPS does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 and leaf.device.type != "cpu":
                raise AssertionError(f"{func} makes float64 on {leaf.device}")
        return result


class OneDevice(TorchDispatchMode):
    """Refuses operations between CUDA tensors and tensors of the CPU; a 0-dim one is a number and may pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        on_cpu = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim]
        if on_cpu and any(tensor.is_cuda for tensor in tensors):
            raise AssertionError(f"{func} meets a tensor of the CPU, {tuple(on_cpu[0].shape)}")
        return result


def pretended(function: Callable[..., Any], *arguments: Any, rule: type = OneDevice) -> list[Tensor]:
    """Call with all tensors moved to a GPU that does not exist; return the tensors that come out."""
    with FakeTensorMode():

        def moved(tensor: Tensor) -> Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

        moved_arguments = tree_map_only(Tensor, moved, arguments)
        with rule():
            result = function(*moved_arguments)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("method", MIXERS.values(), ids=MIXERS.keys())
@pytest.mark.parametrize("labels", [LABELS, ROWS], ids=["indices", "rows"])
def test_apply_reads_nothing_and_stays_on_the_device(method: BatchMixer[Any], labels: Tensor) -> None:
    drawn = method.draw(IMAGES, generator=torch.Generator().manual_seed(0))
    for maps in (MAPS,) if method.needs_saliency else (MAPS, None):
        mixed = pretended(method.apply, IMAGES, labels, maps, drawn)
        assert len(mixed) == 6
        assert all(tensor.is_cuda for tensor in mixed)


@pytest.mark.parametrize(("function", "arguments"), CALLS.values(), ids=CALLS.keys())
def test_functions_read_nothing_and_stay_on_the_device(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    results = pretended(function, *arguments)
    assert results
    assert all(tensor.is_cuda for tensor in results)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(box_iou, (WEIGHT[None], WEIGHT[None])), (cell_entropy, (torch.rand(3, 2, 16, 16),))],
    ids=["box_iou", "cell_entropy"],
)
def test_evaluations_compute_in_float64_on_the_host(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    assert [value.device.type for value in pretended(function, *arguments, rule=NoDoubles)] == ["cpu"]


def test_every_method_and_source_is_here_or_exempt_by_name() -> None:
    assert REGISTRY.keys() == (MIXERS.keys() - CHOICES.keys()) | EXEMPT_METHODS.keys() | (
        REGISTRY.keys() & CALLS.keys()
    )
    assert SALIENCY_SOURCES.keys() == (SALIENCY_SOURCES.keys() & CALLS.keys()) | EXEMPT_SOURCES.keys()


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x[torch.arange(2)],
        lambda x: x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.index_select(0, torch.tensor([0])),
    ],
    ids=["CPU index", "item", "branch", "boolean index", "CPU index_select"],
)
def test_faults_are_noticed(fault: Callable[[Tensor], Any]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  (torch's own errors, of several classes)
        pretended(fault, torch.rand(4, 3))
