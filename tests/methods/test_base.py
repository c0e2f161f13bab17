"""`as_transform`: model-free methods in a collate function, in worker processes, and inside torchvision's v2."""

import pickle
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import saligraft as sg

K = 5


def make_batch(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(0)
    return torch.randint(256, (6, 3, 16, 12), generator=stream).to(dtype), torch.randint(K, (6,), generator=stream)


@pytest.mark.parametrize(
    "method",
    [
        sg.Mixup(),
        sg.CutMix(),
        sg.SaliencyMix(),
        sg.Compose([sg.Cutout(size=4), sg.CutMix()]),
        sg.RandomChoice([sg.Mixup(), sg.CutMix(), None], per="sample"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_is_the_method_with_dense_targets(method: sg.CutMix) -> None:
    images, labels = make_batch()
    torch.manual_seed(3)
    shown, targets = method.as_transform(num_classes=K)(images, labels)
    torch.manual_seed(3)
    mixed = method(images, labels)
    assert torch.equal(shown, mixed.images)
    assert torch.equal(targets, mixed.targets(K))
    assert targets.dtype == torch.float32


@pytest.mark.parametrize(
    "method", [sg.CutMix(), sg.SaliencyMix(), sg.Compose([sg.Cutout(size=4), sg.CutMix()])], ids=["cut", "map", "both"]
)
def test_bytes_are_pasted_exactly(method: sg.CutMix) -> None:
    images, labels = make_batch(torch.uint8)
    kept = images.clone()
    torch.manual_seed(3)
    shown, targets = method.as_transform(num_classes=K)(images, labels)
    torch.manual_seed(3)
    mixed = method(images.float(), labels)
    assert shown.dtype == torch.uint8
    assert torch.equal(shown.float(), mixed.images)
    assert torch.equal(targets, mixed.targets(K))
    assert torch.equal(images, kept)


def collate(mix: object, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return mix(*default_collate(samples))


def test_works_in_the_workers_of_a_loader() -> None:
    mix = pickle.loads(pickle.dumps(sg.CutMix().as_transform(num_classes=K)))
    assert mix == sg.CutMix().as_transform(num_classes=K)
    images, labels = make_batch(torch.uint8)
    loader = DataLoader(TensorDataset(images, labels), batch_size=3, collate_fn=partial(collate, mix), num_workers=1)
    batches = list(loader)
    assert [(len(shown), targets.shape) for shown, targets in batches] == [(3, (3, K))] * 2
    for _, targets in batches:
        torch.testing.assert_close(targets.sum(dim=1), torch.ones(3))


def test_works_inside_torchvision() -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    images, labels = make_batch()
    either = v2.RandomChoice([sg.Mixup().as_transform(num_classes=K), sg.CutMix().as_transform(num_classes=K)])
    for given in (images, tv_tensors.Image(images)):
        for shown, targets in (either(given, labels), either((given, labels)), v2.Compose([either])(given, labels)):
            assert shown.shape == images.shape
            assert targets.shape == (6, K)
            assert nn.functional.cross_entropy(torch.zeros(6, K), targets) > 0


def test_refuses_what_a_transform_cannot_do() -> None:
    images, labels = make_batch(torch.uint8)
    choice = sg.RandomChoice([sg.CutMix(), sg.SaliencyGrafting()])
    for method in (sg.SaliencyGrafting(), sg.PuzzleMix(), sg.AttentiveCutMix(), choice):
        with pytest.raises(ValueError, match=r"needs saliency maps of a network.*GraftingStep.*SaliencyCapture"):
            method.as_transform(num_classes=K)
    for method in (sg.Mixup(), sg.RandomChoice([sg.Mixup(), sg.CutMix()])):
        with pytest.raises(
            TypeError, match=r"images must be floating point for .*, which blends them, got torch\.uint8"
        ):
            method.as_transform(num_classes=K)(images, labels)
    for fill in (-1.0, 0.5, 256):
        method = sg.RandomChoice([sg.CutMix(), sg.Cutout(fill=fill)])
        with pytest.raises(ValueError, match=rf"fill must be .* in \[0, 255\] for images in torch\.uint8, got {fill}"):
            method.as_transform(num_classes=K)(images, labels)
        assert method.as_transform(num_classes=K)(images.float(), labels)[0].shape == images.shape
    white = sg.Compose([sg.Cutout(size=40, fill=255.0)]).as_transform(num_classes=K)
    assert (white(images, labels)[0] == 255).all()
    with pytest.raises(TypeError, match="images must be floating point"):
        sg.CutMix().as_transform(num_classes=K)(images.int(), labels)
    with pytest.raises(ValueError, match="num_classes must be >= 1, got 0"):
        sg.CutMix().as_transform(num_classes=0)
    with pytest.raises(ValueError, match="num_classes must be given for labels that are class indices"):
        sg.CutMix().as_transform()(images, labels)
    with pytest.raises(TypeError, match=r"labels must be a torch\.Tensor, got NoneType"):
        sg.CutMix().as_transform(num_classes=K)(images)
