"""The data set as a whole: its promises, and that only the shape reveals the class."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from saligraft.data import ImageData, InMemoryLoader
from saligraft.data.shapes import CLASSES, mask_boxes, shapes

CHANCE = 100 / len(CLASSES)


@pytest.fixture(scope="module")
def train() -> ImageData:
    return shapes(split="train", per_class=200)


@pytest.fixture(scope="module")
def test() -> ImageData:
    return shapes(split="test", per_class=250)


def test_balanced_labels_and_stated_statistics(train: ImageData) -> None:
    assert len(train.classes) >= 10
    assert torch.equal(train.labels.bincount(), torch.full((len(CLASSES),), 200))
    values = train.images.float() / 255
    torch.testing.assert_close(values.mean((0, 2, 3)), torch.tensor(train.mean), atol=0.01, rtol=0)
    torch.testing.assert_close(values.std((0, 2, 3)), torch.tensor(train.std), atol=0.01, rtol=0)


def test_every_class_covers_the_same_area(train: ImageData) -> None:
    assert train.masks is not None
    area = train.masks.flatten(1).float().mean(1)
    by_class = torch.stack([area[train.labels == label].mean() for label in range(len(CLASSES))])
    assert by_class.max() / by_class.min() < 1.1


@given(size=st.integers(16, 40), width=st.integers(16, 40), seed=st.integers(0, 2**31))
@settings(max_examples=10)
def test_masks_hold_an_object_and_boxes_are_tight(size: int, width: int, seed: int) -> None:
    data = shapes(size=(size, width), per_class=1, seed=seed)
    assert tuple(data.images.shape) == (len(CLASSES), 3, size, width)
    assert data.masks is not None
    assert data.boxes is not None
    for mask, box in zip(data.masks, data.boxes, strict=True):
        rows, columns = mask.nonzero(as_tuple=True)
        assert len(rows) > 0
        tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert box.tolist() == [int(value) for value in tight]


def test_boxes_of_masks_at_the_rim() -> None:
    masks = torch.zeros(2, 5, 7, dtype=torch.bool)
    masks[0, 0, 6] = masks[1, 2:4, 1:3] = True
    assert mask_boxes(masks).tolist() == [[6, 0, 7, 1], [1, 2, 3, 4]]


@pytest.mark.parametrize("size", [16, 32, (20, 28)])
def test_a_smaller_per_class_gives_the_first_images_of_a_larger(size: int | tuple[int, int]) -> None:
    few, many = shapes(size=size, per_class=3, seed=7), shapes(size=size, per_class=20, seed=7)
    for name in ("images", "labels", "masks", "boxes"):
        assert torch.equal(getattr(few, name), getattr(many, name)[: len(few)])


def test_same_seed_same_images_and_other_streams_share_none() -> None:
    first, again = shapes(per_class=5), shapes(per_class=5)
    assert torch.equal(first.images, again.images)
    streams = [first, shapes(per_class=5, split="test"), shapes(per_class=5, seed=1)]
    images = torch.cat([data.images for data in streams]).flatten(1)
    assert len(images.unique(dim=0)) == 3 * len(first)


def test_global_randomness_is_neither_used_nor_changed() -> None:
    before = torch.random.get_rng_state()
    shapes(per_class=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_number_of_threads_changes_no_image_and_stays_as_it_was() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = shapes(per_class=5).images
        torch.set_num_threads(3)
        assert torch.equal(shapes(per_class=5).images, single)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"per_class": 0}, ValueError, "per_class must be >= 1, got 0"),
        ({"per_class": 2.5}, TypeError, "per_class must be an int"),
        ({"seed": -1}, ValueError, "seed must be >= 0, got -1"),
        ({"size": 10**6}, ValueError, "size must be <= 1024, got 1000000"),
        ({"per_class": 10**9}, ValueError, "per_class must be <= 976562, got 1000000000"),
        ({"seed": 2**64}, ValueError, "seed must be <= 9223372036854775807, got 18446744073709551616"),
        ({"size": 15}, ValueError, "size must be >= 16, got 15"),
        ({"size": (32, 8)}, ValueError, "size must be >= 16, got 8"),
        ({"size": (32, 32, 3)}, TypeError, "size must be an integer or"),
        ({"size": 32.0}, TypeError, "size must be an integer or"),
        ({"split": "valid"}, ValueError, "split must be one of 'train', 'test'; got 'valid'"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        shapes(**options)


def probe_accuracy(features: tuple[Tensor, Tensor], data: tuple[ImageData, ImageData]) -> float:
    """Test accuracy, in percent, of multinomial logistic regression with a ridge, features (N,D) of train and test."""
    spread = features[0].std(0)
    varying = spread > 1e-6
    centre = features[0][:, varying].mean(0)
    seen, unseen = ((part[:, varying] - centre) / spread[varying] for part in features)
    weight = torch.zeros(seen.shape[1], len(CLASSES), requires_grad=True)
    bias = torch.zeros(len(CLASSES), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(seen @ weight + bias, data[0].labels) + 0.01 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return float(((unseen @ weight + bias).argmax(1) == data[1].labels).float().mean() * 100)


def colour_histogram(images: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Shares (N,112) of the chosen pixels (N,H,W), by default all: 4x4x4 joint bins, and 16 bins of each channel."""
    chosen = torch.ones_like(images[:, 0], dtype=torch.bool) if chosen is None else chosen
    red, green, blue = images.long().unbind(1)
    kinds = [(red // 64 * 16 + green // 64 * 4 + blue // 64, 64), (red // 16, 16), (green // 16, 16), (blue // 16, 16)]
    counts = [
        torch.zeros(len(images), bins).scatter_add_(1, kind.flatten(1), chosen.flatten(1).float())
        for kind, bins in kinds
    ]
    return torch.cat(counts, dim=1) / chosen.flatten(1).sum(1, keepdim=True)


def background_features(data: ImageData) -> Tensor:
    """What can be seen of the background without seeing the silhouette.

    Replacing the object by a constant would leave its outline to be read, so no feature says where the object is:
    the colours' shares among background pixels, whose number is divided out, and the raw pixels of the outermost ring,
    which no object ever covers. Pixels that touch the mask are left out, since anti-aliasing mixes the object's colour
    into them.
    """
    assert data.masks is not None
    near = F.max_pool2d(data.masks[:, None].float(), 3, stride=1, padding=1)[:, 0] > 0
    ring = torch.ones(data.masks.shape[1:], dtype=torch.bool)
    ring[1:-1, 1:-1] = False
    assert not (data.masks & ring).any()
    return torch.cat([colour_histogram(data.images, ~near), data.images[:, :, ring].flatten(1) / 255], dim=1)


@pytest.mark.slow
def test_colours_do_not_tell_the_class(train: ImageData, test: ImageData) -> None:
    features = (colour_histogram(train.images), colour_histogram(test.images))
    assert abs(probe_accuracy(features, (train, test)) - CHANCE) < 3


@pytest.mark.slow
def test_the_background_does_not_tell_the_class(train: ImageData, test: ImageData) -> None:
    features = (background_features(train), background_features(test))
    assert abs(probe_accuracy(features, (train, test)) - CHANCE) < 3


@pytest.mark.slow
def test_the_probe_finds_a_leak_where_there_is_one(train: ImageData, test: ImageData) -> None:
    """The silhouette reveals the class even to a linear probe, and so would a faint tint by class."""
    masks = [data.masks for data in (train, test)]
    assert masks[0] is not None
    assert masks[1] is not None
    assert probe_accuracy((masks[0].flatten(1).float(), masks[1].flatten(1).float()), (train, test)) > 2 * CHANCE
    tinted = [data.images // 2 + (8 * data.labels).to(torch.uint8)[:, None, None, None] for data in (train, test)]
    features = (colour_histogram(tinted[0]), colour_histogram(tinted[1]))
    assert probe_accuracy(features, (train, test)) > 2 * CHANCE


def small_network() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width, stride in ((16, 1), (32, 2), (64, 2), (64, 2)):
        layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, len(CLASSES)))


def error(model: nn.Module, data: ImageData) -> float:
    model.eval()
    with torch.no_grad():
        batches = InMemoryLoader(data, batch_size=250, train=False)
        return 100 * sum(int((model(b.images).argmax(1) != b.labels).sum()) for b in batches) / len(data)


@pytest.mark.slow
def test_a_small_network_learns_it_but_overfits(test: ImageData) -> None:
    """At 100 images a class there is something to learn, and room for augmentation to help."""
    torch.manual_seed(0)
    data = shapes(per_class=100)
    loader = InMemoryLoader(data, batch_size=50, train=True, pad=0)
    model, epochs = small_network(), 25
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch.images), batch.labels).backward()
            optimizer.step()
            schedule.step()
    test_error = error(model, test)
    assert 15 < test_error < 60
    assert test_error - error(model, data) > 15
