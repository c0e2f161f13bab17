"""Videos and signals: as the same mixing of images. Numbers as labels: regression with a plain criterion."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import saligraft as sg
from saligraft.methods import BatchMixer
from saligraft.methods.registry import methods_of

B = 6
ANY = [sg.Mixup(), sg.CutMix(), sg.SaliencyGrafting(), sg.SaliencyGrafting(selection="top-k", k=2, grids=(4,))]
ANY.append(sg.RandomChoice([sg.Mixup(), sg.CutMix()], per="sample"))
any_shape = pytest.mark.parametrize("method", ANY, ids=lambda method: type(method).__name__)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mix(method: BatchMixer[Any], images: Tensor, labels: Tensor, saliency: Tensor) -> sg.MixedBatch:
    return method(images, labels, saliency, generator=seeded(3))


@any_shape
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_video_is_mixed_as_its_frames_stacked_in_channels(method: BatchMixer[Any], dtype: torch.dtype) -> None:
    video, maps = torch.rand(B, 3, 4, 16, 12, generator=seeded()).to(dtype), torch.rand(B, 5, 5, generator=seeded(1))
    kept = video.clone()
    mixed = mix(method, video, torch.arange(B), maps)
    expected = mix(method, video.flatten(1, 2), torch.arange(B), maps)
    assert torch.equal(mixed.images, expected.images.view_as(video))
    assert all(torch.equal(a, b) for a, b in zip(mixed[1:], expected[1:], strict=True))
    assert torch.equal(mixed.carry(video), mixed.images)
    assert mixed.carry(video[:, 0]).shape == (B, 4, 16, 12)
    assert torch.equal(video, kept)


@any_shape
@pytest.mark.parametrize("length", [32, 45])
def test_each_position_of_a_signal_comes_from_one_of_two(method: BatchMixer[Any], length: int) -> None:
    signals, maps = torch.rand(B, 2, length, generator=seeded()), torch.rand(B, 1, 9, generator=seeded(1))
    mixed = mix(method, signals, torch.arange(B), maps)
    cells = mixed.mask.shape[2]
    assert mixed.mask.shape == (B, 1, cells)
    assert mixed.mask.any()
    for i in range(B):
        for position in range(length):
            share = float(mixed.mask[i, 0, position * cells // length])
            values = share * signals[i, :, position] + (1 - share) * signals[mixed.partner[i], :, position]
            torch.testing.assert_close(mixed.images[i, :, position], values)
    assert torch.equal(mixed.carry(signals), mixed.images)
    assert mixed.carry(signals[:, 0]).shape == (B, length)


def test_segments_of_cutmix_have_the_drawn_length() -> None:
    """Unclipped, half of 64 positions: 32; and the weight is the share of positions."""
    signals = torch.rand(400, 1, 64)
    mixed = sg.CutMix(alpha=1e6)(signals, torch.arange(400), generator=seeded())
    lengths = mixed.mask.sum(dim=(1, 2))
    assert lengths.max() <= 32
    assert lengths.median() >= 28
    torch.testing.assert_close(mixed.source_weight, lengths / 64)


def test_one_dimensional_grafting_is_that_of_an_image_of_equal_rows() -> None:
    """A map (B, 1, l) selects what it selects as a map (B, l, l) of equal rows, and gives the same weights."""
    maps, partner = torch.rand(B, 1, 4, generator=seeded()), torch.randperm(B, generator=seeded(1))
    signals, chosen = torch.rand(B, 2, 16, generator=seeded()), torch.rand(B, 1, 4, generator=seeded(2)) < 0.7
    line = sg.graft_salient_regions(signals, torch.arange(B), maps, partner=partner, chosen=chosen)
    square = sg.graft_salient_regions(
        signals[:, :, None].expand(-1, -1, 16, -1),
        torch.arange(B),
        maps.expand(-1, 4, -1),
        partner=partner,
        chosen=chosen.expand(-1, 4, -1),
        # l2 of equal rows is twice as large: a temperature of half the size makes up for it
        temperature=0.1,
    )
    assert torch.equal(line.mask.expand(-1, 4, -1), square.mask)
    assert torch.equal(line.images, square.images[:, :, 0])
    torch.testing.assert_close(line.source_weight, square.source_weight)


def test_graft_takes_every_shape() -> None:
    mask = torch.rand(B, 2, 3, generator=seeded()) < 0.5
    source, destination = torch.rand(B, 3, 4, 8, 9), torch.rand(B, 3, 4, 8, 9)
    video = sg.graft(source, destination, mask)
    for frame in range(4):
        assert torch.equal(video[:, :, frame], sg.graft(source[:, :, frame], destination[:, :, frame], mask))
    line = sg.graft(source[:, :, 0, 0], destination[:, :, 0, 0], mask[:, :1])
    assert torch.equal(line, sg.graft(source[:, :, 0, :1], destination[:, :, 0, :1], mask[:, :1])[:, :, 0])


@pytest.mark.parametrize("shape", [(B, 3, 16), (B, 3, 4, 16, 16)])
def test_other_methods_refuse_other_shapes(shape: tuple[int, ...]) -> None:
    others = [method() for method in methods_of(BatchMixer).values() if type(method()) not in map(type, ANY)]
    for method in (*others, sg.Compose([sg.Cutout(), sg.CutMix()]), sg.RandomChoice([sg.CutMix(), sg.SaliencyMix()])):
        with pytest.raises(ValueError, match=r"images must have shape \(B, C, H, W\), got"):
            method(torch.rand(shape), torch.arange(B), torch.rand(B, 4, 4))
    with pytest.raises(ValueError, match=r"shape \(B, C, H, W\) or \(B, C, L\) or \(B, C, T, H, W\), got \(6, 3\)"):
        sg.CutMix()(torch.rand(B, 3), torch.arange(B))


def test_maps_of_signals_are_one_row() -> None:
    signals, labels = torch.rand(B, 3, 16), torch.arange(B)
    with pytest.raises(ValueError, match=r"saliency of signals must have shape \(B, 1, l\), got \(6, 3, 16\)"):
        sg.SaliencyGrafting()(signals, labels, torch.rand(B, 3, 16))
    with pytest.raises(ValueError, match=r"grids must not exceed the image \(1, 6\), got 8"):
        sg.SaliencyGrafting()(signals[:, :, :6], labels, torch.rand(B, 1, 6))


class Regressor(nn.Module):
    def __init__(self, outputs: int, *, squeezed: bool = False) -> None:
        super().__init__()
        self.features, self.head = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Linear(8, outputs)
        self.squeezed = squeezed

    def forward(self, images: Tensor) -> Tensor:
        output = self.head(self.features(images).mean(dim=(2, 3)))
        return output[:, 0] if self.squeezed else output


@pytest.mark.parametrize("kind", [sg.GraftingStep, sg.MixingStep])
@pytest.mark.parametrize(("outputs", "squeezed"), [(1, False), (1, True), (3, False)])
def test_regression_with_a_plain_criterion(kind: type, outputs: int, squeezed: bool) -> None:
    torch.manual_seed(0)
    images, numbers = torch.rand(B, 3, 16, 16), torch.randn(B, outputs)
    assert (numbers < 0).any()
    model = Regressor(outputs, squeezed=squeezed)
    labels = numbers[:, 0] if outputs == 1 else numbers
    method = sg.SaliencyGrafting() if kind is sg.GraftingStep else sg.Mixup()
    out = kind(model, method, criterion=nn.MSELoss(), generator=seeded())(images, labels)
    out.loss.backward()
    mixed = out.mixed
    weight = mixed.source_weight[:, None]
    targets = weight * numbers + (1 - weight) * numbers[mixed.partner]
    torch.testing.assert_close(mixed.targets(), targets)
    loss = (model(mixed.images).view(B, -1) - targets).square().mean()
    if kind is sg.GraftingStep:
        loss = (loss + (model(images).view(B, -1) - numbers).square().mean()) / 2
    torch.testing.assert_close(out.loss, loss)


def test_classification_losses_refuse_numbers_and_negative_rows() -> None:
    images = torch.rand(B, 3, 16, 16)
    with pytest.raises(
        TypeError, match=r"must be integer class indices, got torch.float32: regression needs .*MSELoss"
    ):
        sg.MixingStep(Regressor(1))(images, torch.randn(B))
    with pytest.raises(ValueError, match="labels given as rows must be finite and >= 0"):
        sg.MixingStep(Regressor(3))(images, torch.full((B, 3), -1.0))
    with pytest.raises(TypeError, match=r"must be integer class indices, .* maps that need no classes, such as 'feat"):
        sg.saliency_source("cam", Regressor(3))(images, torch.randn(B))
    with pytest.raises(ValueError, match=r"must be finite and >= 0, .* maps that need no classes, such as 'feat"):
        sg.saliency_source("cam", Regressor(3))(images, torch.full((B, 3), -1.0))


VIDEO = nn.Sequential(
    nn.Conv3d(3, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, B)
)
SIGNAL = nn.Sequential(
    nn.Conv1d(3, 8, 3, stride=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, B)
)


@pytest.mark.parametrize(
    ("model", "shape", "maps"), [(VIDEO, (B, 3, 4, 16, 12), (B, 16, 12)), (SIGNAL, (B, 3, 41), (B, 1, 20))]
)
def test_convolutional_networks_have_maps_of_videos_and_signals(
    model: nn.Sequential, shape: tuple[int, ...], maps: tuple[int, ...]
) -> None:
    inputs = torch.rand(shape, generator=seeded())
    capture = sg.SaliencyCapture(model)
    saliency = capture(inputs)[1]
    assert capture.layer_name == "2"
    features = model[:3](inputs).abs()
    torch.testing.assert_close(saliency, features.sum(dim=(1, 2)) if len(shape) == 5 else features.sum(1, keepdim=True))
    assert saliency.shape == maps
    out = sg.GraftingStep(model, sg.SaliencyGrafting())(inputs, torch.arange(B))
    out.loss.backward()
    assert out.mixed.images.shape == shape


def test_tokens_of_signals_are_not_taken_for_channels() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Linear(3, 8), nn.Linear(8, B)

        def forward(self, signals: Tensor) -> Tensor:
            return self.head(self.block(signals.transpose(1, 2)).mean(dim=1))

    signals, labels = torch.rand(B, 3, 32), torch.arange(B)
    with pytest.raises(ValueError, match="pass a function of the images that returns maps as saliency_source="):
        sg.GraftingStep(Tokens(), sg.SaliencyGrafting())(signals, labels)
    step = sg.GraftingStep(Tokens(), sg.SaliencyGrafting(), saliency_source=lambda x: x.abs().mean(1, keepdim=True))
    assert step(signals, labels).mixed.images.shape == signals.shape
