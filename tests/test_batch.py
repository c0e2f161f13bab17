"""MixedBatch: one weight, one meaning; dense rows sum to one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import saligraft as sg
from saligraft import MixedBatch


def batch_of(labels: torch.Tensor, partner: torch.Tensor, weight: torch.Tensor) -> MixedBatch:
    images = torch.zeros(len(labels), 1, 2, 2)
    return MixedBatch(images, labels, labels[partner], weight, torch.zeros(len(labels), 1, 1), partner)


@given(seed=st.integers(0, 999), batch=st.integers(1, 9), classes=st.integers(1, 7))
def test_rows_sum_to_one_and_weight_the_source(seed: int, batch: int, classes: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (batch,), generator=stream)
    weight = torch.rand(batch, generator=stream)
    mixed = batch_of(labels, torch.randperm(batch, generator=stream), weight)
    rows = mixed.targets(classes)
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(batch))
    for i in range(batch):
        expected = torch.zeros(classes)
        expected[mixed.source_labels[i]] += weight[i]
        expected[mixed.destination_labels[i]] += 1 - weight[i]
        torch.testing.assert_close(rows[i], expected)


def test_index_and_one_hot_labels_give_the_same_rows() -> None:
    labels, partner, weight = torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2]), torch.tensor([0.25, 0.5, 1.0])
    rows = torch.nn.functional.one_hot(labels, 3)
    assert torch.equal(batch_of(labels, partner, weight).targets(3), batch_of(rows, partner, weight).targets())


def test_unmixed_is_the_unchanged_batch() -> None:
    images, labels = torch.rand(3, 1, 4, 4), torch.tensor([2, 0, 1])
    original = MixedBatch.unmixed(images, labels)
    assert original.images is images
    assert torch.equal(original.targets(3), torch.nn.functional.one_hot(labels, 3).float())


def test_refuses_missing_or_wrong_class_counts() -> None:
    mixed = batch_of(torch.tensor([0, 5]), torch.tensor([1, 0]), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="num_classes must be given"):
        mixed.targets()
    with pytest.raises(ValueError, match=r"labels must be class indices in \[0, 3\), got 5"):
        mixed.targets(3)
    with pytest.raises(ValueError, match=r"in \[0, 1\), or floats for regression, got 5"):
        mixed.targets(1)
    rows = batch_of(torch.rand(2, 4), torch.tensor([1, 0]), torch.tensor([0.5, 0.5]))
    with pytest.raises(ValueError, match="labels must have num_classes=3 columns, got 4"):
        rows.targets(3)


def grafted(size: tuple[int, int] = (12, 10), batch: int = 5) -> MixedBatch:
    stream = torch.Generator().manual_seed(0)
    images, saliency = torch.rand(batch, 3, *size, generator=stream), torch.rand(batch, 4, 4, generator=stream)
    method = sg.SaliencyGrafting(grids=(4,), threshold=0.5)
    return method(images, torch.arange(batch), saliency, generator=stream)


@pytest.mark.parametrize(("height", "width"), [(12, 10), (24, 20), (6, 5), (7, 31), (1, 1)])
def test_carried_values_follow_the_pixel_at_their_centre(height: int, width: int) -> None:
    mixed = grafted()
    values = torch.randint(99, (5, height, width), generator=torch.Generator().manual_seed(1))
    carried = mixed.carry(values)
    assert carried.dtype == values.dtype
    for i in range(5):
        for row in range(height):
            for column in range(width):
                y, x = int((row + 0.5) * 12 / height), int((column + 0.5) * 10 / width)
                origin = i if mixed.mask[i, y * 4 // 12, x * 4 // 10] else mixed.partner[i]
                assert carried[i, row, column] == values[origin, row, column]


def test_every_shape_and_dtype_is_carried_alike_and_stays_unchanged() -> None:
    mixed = grafted()
    pasted = mixed.carry(torch.arange(5)[:, None, None].expand(5, 12, 10))
    for dtype in (torch.uint8, torch.int64, torch.bool, torch.float16):
        for shape in ((5, 12, 10), (5, 4, 12, 10), (5, 2, 3, 12, 10)):
            values = torch.randint(2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            kept = values.clone()
            index = pasted.view(5, *[1] * (len(shape) - 3), 12, 10).expand(shape)
            assert torch.equal(mixed.carry(values), values.gather(0, index))
            assert torch.equal(values, kept)


def test_carried_values_have_gradients() -> None:
    values = torch.rand(5, 1, 24, 20, requires_grad=True)
    grafted().carry(values).sum().backward()
    assert values.grad.sum() == values.numel()


def test_blends_carry_floats_alone() -> None:
    labels = torch.arange(4)
    mixed = sg.Mixup()(torch.rand(4, 3, 8, 8), labels)
    depth = torch.rand(4, 16, 16)
    weight = mixed.source_weight[:, None, None]
    torch.testing.assert_close(mixed.carry(depth), weight * depth + (1 - weight) * depth[mixed.partner])
    with pytest.raises(TypeError, match=r"must be floating point where images are blended, got torch\.int64.*one-hot"):
        mixed.carry(torch.zeros(4, 8, 8, dtype=torch.long))


def test_originals_carry_what_they_have() -> None:
    values = torch.randint(9, (3, 5, 5))
    assert torch.equal(MixedBatch.unmixed(torch.rand(3, 1, 4, 4), torch.arange(3)).carry(values), values)


def test_carry_refuses_what_it_cannot_repeat() -> None:
    images, labels = torch.rand(4, 3, 8, 8), torch.arange(4)
    mixed = sg.CutMix()(images, labels)
    for values in (torch.rand(3, 8, 8), torch.rand(4, 8), torch.rand(4, 0, 8), torch.rand(4)):
        with pytest.raises(ValueError, match=r"values must have shape \(B, H, W\) or \(B, C, H, W\) with B = 4, got"):
            mixed.carry(values)
    with pytest.raises(TypeError, match=r"values must be a torch\.Tensor, got list"):
        mixed.carry([1, 2, 3, 4])
    with pytest.raises(ValueError, match="values must be on the device of images"):
        mixed.carry(torch.rand(4, 8, 8, device="meta"))
    cutout = sg.Cutout(size=2)
    choice = sg.RandomChoice([sg.CutMix(), cutout], per="sample")
    for method in (sg.Compose([cutout, sg.CutMix()]), sg.Compose([cutout]), choice):
        with pytest.raises(ValueError, match="images were transformed"):
            method(images, labels, generator=torch.Generator().manual_seed(0)).carry(images)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    with sg.ManifoldMixup(layers=["input"]).mixing(model, images, labels) as features:
        model(features.images)
    with pytest.raises(ValueError, match="features were mixed"):
        features._replace(images=images).carry(images)
