"""The score of a label, and what every source asks of labels and torch."""

import pytest
import torch
from torch import Tensor, nn

from saligraft.saliency.base import SaliencySource, label_scores
from saligraft.saliency.sources import saliency_source


def small_network() -> nn.Module:
    """Five classes; the head pools the map and is linear."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


def test_scores() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    assert label_scores(logits, torch.tensor([2, 0])).tolist() == [4.0, 8.0]
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 1.0]])
    assert label_scores(logits, rows).tolist() == [1.5, 48.0]


@pytest.mark.parametrize("name", ["cam", "grad-cam", "input-gradient"])
@pytest.mark.parametrize("labels", [torch.tensor([0, 5]), torch.tensor([-1, 0]), torch.ones(2, 6)])
def test_a_class_that_the_network_does_not_have_is_named(name: str, labels: Tensor) -> None:
    network = small_network()
    source, images = saliency_source(name, network), torch.randn(2, 3, 16, 16)
    expected = r"labels must (be class indices in \[0, 5\), got (5|-1)|have one column per .*, 5, got 6)$"
    with pytest.raises(ValueError, match=expected):
        source(images, labels)
    with pytest.raises(ValueError, match=expected):
        source.with_logits(network, images, labels)


@pytest.mark.parametrize("name", ["grad-cam", "input-gradient"])
def test_sources_with_a_gradient_refuse_inference_mode(name: str) -> None:
    network = small_network()
    source, labels = saliency_source(name, network), torch.tensor([0, 4])
    with torch.inference_mode():
        images = torch.randn(2, 3, 16, 16)
        with pytest.raises(RuntimeError, match=rf"{name} needs a gradient.*inference_mode.*no_grad"):
            source(images, labels)
    with torch.no_grad():  # images created in inference mode work elsewhere
        assert torch.equal(source(images, labels), source(images.clone(), labels))


def test_a_source_of_ones_own_needs_only_its_call() -> None:
    class Rows(SaliencySource):
        def __call__(self, images, labels=None):
            return images.detach().abs().mean(dim=1) * (1 + labels)[:, None, None]

    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images, labels = torch.randn(2, 3, 2, 2), torch.tensor([0, 2])
    logits, saliency = Rows().with_logits(model, images, labels)
    torch.testing.assert_close(logits, model(images))
    torch.testing.assert_close(saliency[1], images[1].abs().mean(dim=0) * 3)
