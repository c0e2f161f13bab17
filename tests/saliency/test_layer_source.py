"""The pass that shows a layer's tensor to a hook: which layer, which classifier, which call."""

import threading

import pytest
import torch
from torch import Tensor, nn

from saligraft.saliency import ClassActivation, GradCam
from saligraft.saliency.layer_source import is_linear, linear_weight

K = 4


class Twice(nn.Module):
    """One ReLU in trunk and head, an auxiliary classifier of another size, and a 1 × 1 convolution as classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.relu = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        self.auxiliary = nn.Linear(6, K + 1)
        self.classifier = nn.Conv2d(6, K, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.relu(self.convolution(images)).mean(dim=(2, 3))
        auxiliary = self.auxiliary(self.relu(pooled))
        return self.classifier(pooled[:, :, None, None]).flatten(1), auxiliary


def expected_maps(model: Twice, images: Tensor, labels: Tensor) -> Tensor:
    weight = model.classifier.weight.flatten(1)[labels]
    return torch.einsum("bchw,bc->bhw", model.convolution(images).relu(), weight).relu().detach()


@pytest.mark.parametrize("layer", [None, "relu"])
def test_the_layer_and_the_classifier_are_found(layer: str | None) -> None:
    torch.manual_seed(0)
    model = Twice()
    images, labels = torch.randn(3, 3, 6, 9), torch.tensor([3, 1, 0])
    source = ClassActivation(model, layer)
    torch.testing.assert_close(source(images, labels), expected_maps(model, images, labels))
    assert source.found(images).classifier == "classifier"
    torch.testing.assert_close(GradCam(model, layer)(images, labels) * 54, expected_maps(model, images, labels))


def test_weights_are_read_in_every_pass() -> None:
    model = Twice()
    images, labels = torch.randn(3, 3, 6, 9), torch.tensor([3, 1, 0])
    source = ClassActivation(model)
    source(images, labels)
    with torch.no_grad():
        model.classifier.weight.neg_()
    torch.testing.assert_close(source(images, labels), expected_maps(model, images, labels))


def test_other_sizes_and_batches_than_the_first() -> None:
    model = Twice()
    source = ClassActivation(model)
    for count, size in ((3, (6, 9)), (1, (10, 4)), (2, (5, 5))):
        images, labels = torch.randn(count, 3, *size), torch.arange(count)
        torch.testing.assert_close(source(images, labels), expected_maps(model, images, labels))


def test_a_layer_that_does_not_run_raises_instead_of_an_old_map() -> None:
    model = Twice()
    images, labels = torch.randn(3, 3, 6, 9), torch.tensor([3, 1, 0])
    source = ClassActivation(model)
    source(images, labels)
    model.forward = lambda batch: batch.new_zeros(len(batch), K)
    with pytest.raises(RuntimeError, match="did not pass through its hook"):
        source(images, labels)


def test_a_pass_of_another_thread_is_not_this_ones() -> None:
    model = Twice()
    images, labels = torch.randn(3, 3, 6, 9), torch.tensor([3, 1, 0])
    source = ClassActivation(model)
    expected = source(images, labels)
    plain = model.forward

    def with_company(batch: Tensor) -> tuple[Tensor, Tensor]:
        result = plain(batch)
        other = threading.Thread(target=lambda: plain(batch * 5))
        other.start()
        other.join()
        return result

    model.forward = with_company
    torch.testing.assert_close(source(images, labels), expected)


def test_what_counts_as_linear() -> None:
    assert is_linear(nn.Linear(2, 3))
    assert is_linear(nn.Conv2d(2, 3, 1))
    assert not is_linear(nn.Conv2d(2, 3, 3))
    assert linear_weight(nn.Conv2d(2, 3, 1)).shape == (3, 2)
