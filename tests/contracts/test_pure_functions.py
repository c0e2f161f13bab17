"""Pure functions never look at a value (they run on meta tensors) and compile to at most two graphs for all grids."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import saligraft as sg
from saligraft import methods
from saligraft.grafting import pixel_area, spread
from saligraft.masks import rectangle_mask
from saligraft.methods import attentive_cutmix, cutout, jensen_shannon_loss, mix_features
from saligraft.methods.saliencymix import peak_box
from saligraft.regularizers import drop_block, shake_drop
from saligraft.saliency import (
    class_activation_map,
    fine_grained_saliency,
    gradient_activation_map,
    gradient_saliency,
    spectral_residual_saliency,
)

B, K = 4, 5
GRIDS = (8, 4, 7, 16, 3, 12)


def maps(grid: int) -> Tensor:
    return torch.rand(B, grid, grid, generator=torch.Generator().manual_seed(grid))


def features(grid: int) -> Tensor:
    return torch.randn(B, 6, grid, grid, generator=torch.Generator().manual_seed(grid))


def mask(grid: int) -> Tensor:
    return maps(grid) < 0.4


IMAGES = torch.randn(B, 3, 16, 20, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 4, 2, 2])
ROWS = torch.eye(K)[LABELS]
PARTNER = torch.tensor([2, 0, 3, 1])
WEIGHT = torch.tensor([0.0, 0.3, 0.7, 1.0])
BOX = torch.tensor([[0, 0, 4, 5], [2, 3, 16, 20], [5, 5, 5, 5], [0, 0, 16, 20]])
LOGITS = torch.randn(B, K, generator=torch.Generator().manual_seed(1))
CLASS_WEIGHT = torch.randn(K, 6, generator=torch.Generator().manual_seed(2))


def mixed(labels: Tensor, device: torch.device) -> sg.MixedBatch:
    parts = (IMAGES, labels, labels[PARTNER], WEIGHT, mask(4), PARTNER)
    return sg.MixedBatch(*(part.to(device) for part in parts))


def targets(batch: sg.MixedBatch) -> Tensor:
    return batch.targets(K)


# Every pure function of the library with its arguments for a grid.
CALLS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]] = {
    "feature_saliency": (sg.feature_saliency, lambda grid: (torch.randn(B, 6, grid, grid),)),
    "class_activation_map": (
        class_activation_map,
        lambda grid: (features(grid), CLASS_WEIGHT, LABELS),
    ),
    "class_activation_map of rows": (
        lambda a, w, y: class_activation_map(a, w, y, negative="shift"),
        lambda grid: (features(grid), CLASS_WEIGHT, ROWS),
    ),
    "gradient_activation_map": (gradient_activation_map, lambda grid: (features(grid), features(grid).flip(0))),
    "gradient_saliency": (gradient_saliency, lambda grid: (features(grid),)),
    "fine_grained_saliency": (fine_grained_saliency, lambda _: (IMAGES,)),
    "spectral_residual_saliency": (spectral_residual_saliency, lambda _: (IMAGES.sigmoid(),)),
    "peak_box": (lambda s, r: peak_box(s, r, 16, 20), lambda grid: (maps(grid), WEIGHT)),
    "resize_saliency": (sg.resize_saliency, lambda grid: (maps(8), grid)),
    "salient_regions": (sg.salient_regions, lambda grid: (maps(grid),)),
    "top_k_regions": (lambda s: sg.top_k_regions(s, 6), lambda grid: (maps(grid),)),
    "rectangle_mask": (lambda box: rectangle_mask(box, 16, 20), lambda _: (BOX,)),
    "graft": (sg.graft, lambda grid: (IMAGES, IMAGES.flip(0), mask(grid))),
    "spread": (lambda m: spread(m, 16, 20), lambda grid: (mask(grid),)),
    "pixel_area": (lambda m: pixel_area(m, 16, 20), lambda grid: (mask(grid),)),
    "importance": (sg.importance, lambda grid: (maps(grid), mask(grid))),
    "calibrated_weight": (sg.calibrated_weight, lambda grid: (maps(grid), maps(grid).flip(0), mask(grid))),
    "graft_salient_regions": (
        lambda x, y, s, j, p: sg.graft_salient_regions(x, y, s, partner=j, chosen=p),
        lambda grid: (IMAGES, LABELS, maps(grid), PARTNER, mask(grid)),
    ),
    "mixup": (
        lambda x, y, j, w: sg.mixup(x, y, partner=j, source_weight=w),
        lambda _: (IMAGES, LABELS, PARTNER, WEIGHT),
    ),
    "cutmix": (lambda x, y, j, b: sg.cutmix(x, y, partner=j, box=b), lambda _: (IMAGES, LABELS, PARTNER, BOX)),
    "cutout": (lambda x, b: cutout(x, box=b), lambda _: (IMAGES, BOX)),
    "attentive_cutmix": (
        lambda x, y, s, j: attentive_cutmix(x, y, s, partner=j, k=6),
        lambda grid: (IMAGES, LABELS, maps(grid), PARTNER),
    ),
    "saliencymix": (
        lambda x, y, s, j, r: sg.saliencymix(x, y, s, partner=j, ratio=r),
        lambda grid: (IMAGES, LABELS, maps(grid), PARTNER, WEIGHT),
    ),
    "mix_features": (
        lambda f, j, w: mix_features(f, partner=j, source_weight=w),
        lambda grid: (torch.ones(B, 6, grid, grid), PARTNER, WEIGHT),
    ),
    "drop_block": (lambda f, s: drop_block(f, seeds=s), lambda grid: (features(grid), mask(grid)[:, None, 1:, 1:])),
    "shake_drop": (
        lambda f, g, a, b: shake_drop(f, gate=g, alpha=a, beta=b),
        lambda grid: (features(grid), mask(grid)[:, :1, :1, None], features(grid), features(grid).abs()),
    ),
    "jensen_shannon_loss": (jensen_shannon_loss, lambda _: (LOGITS, LOGITS.flip(0), -LOGITS)),
    "mixed_cross_entropy": (
        lambda z, *m: sg.mixed_cross_entropy(z, sg.MixedBatch(*m), label_smoothing=0.1),
        lambda _: (LOGITS, *mixed(LABELS, torch.device("cpu"))),
    ),
    "mixed_binary_cross_entropy": (
        lambda z, *m: sg.mixed_binary_cross_entropy(z, sg.MixedBatch(*m)),
        lambda _: (LOGITS, *mixed(ROWS, torch.device("cpu"))),
    ),
    "mixed_softmax_binary_cross_entropy": (
        lambda z, *m: sg.mixed_softmax_binary_cross_entropy(z, sg.MixedBatch(*m)),
        lambda _: (LOGITS, *mixed(LABELS, torch.device("cpu"))),
    ),
    "targets": (lambda *m: targets(sg.MixedBatch(*m)), lambda _: mixed(LABELS, torch.device("cpu"))),
}
# Solves on the CPU; loops over groups of samples with torchvision's operations.
EXEMPT = {"puzzlemix", "augmix"}


def test_every_methods_pure_function_is_here_or_exempt_by_name() -> None:
    functions = {name for name in methods.__all__ if name.islower()}
    assert functions | {"drop_block", "shake_drop"} <= CALLS.keys() | EXEMPT


pure_functions = pytest.mark.parametrize(("function", "arguments"), CALLS.values(), ids=CALLS.keys())


def leaves(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pure_functions
def test_runs_on_meta_tensors(function: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]) -> None:
    real = arguments(4)
    on_meta = [part.to("meta") if isinstance(part, Tensor) else part for part in real]
    for expected, result in zip(leaves(function(*real)), leaves(function(*on_meta)), strict=True):
        assert result.device.type == "meta"
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)


@pure_functions
def test_compiles_to_at_most_two_graphs_for_all_grids(
    function: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]]
) -> None:
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counting, fullgraph=True)
    for grid in GRIDS:
        inputs = arguments(grid)
        for expected, result in zip(leaves(function(*inputs)), leaves(compiled(*inputs)), strict=True):
            torch.testing.assert_close(result, expected)
    assert len(graphs) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")),
    ],
)
def test_compiled_graft_equals_the_plain_one(backend: str) -> None:
    function, arguments = CALLS["graft_salient_regions"]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for grid in (8, 4):
        inputs = arguments(grid)
        for expected, result in zip(function(*inputs), compiled(*inputs), strict=True):
            torch.testing.assert_close(result, expected)
