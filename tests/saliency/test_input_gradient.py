"""The gradient at the pixels, where it is known in closed form and against finite differences."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saligraft.saliency import InputGradient, gradient_saliency

K = 4


def linear_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 6, K))


def test_of_a_linear_model_it_is_the_weight() -> None:
    model = linear_model()
    weight = model[1].weight.view(K, 3, 5, 6).detach()
    images, labels = torch.randn(3, 3, 5, 6), torch.tensor([2, 0, 3])
    simonyan = InputGradient(model, of="score", over="max")(images, labels)
    torch.testing.assert_close(simonyan, weight[labels].abs().amax(dim=1))
    probabilities = model(images).softmax(dim=1).detach()
    slopes = torch.einsum("bk,kchw->bchw", probabilities - F.one_hot(labels, K), weight)
    torch.testing.assert_close(InputGradient(model)(images, labels), slopes.square().sum(dim=1).sqrt())


@pytest.mark.parametrize("of", ["loss", "score"])
def test_rows_of_labels(of: str) -> None:
    model = linear_model()
    images, labels = torch.randn(3, 3, 5, 6), torch.tensor([2, 0, 3])
    source = InputGradient(model, of=of)
    torch.testing.assert_close(source(images, torch.eye(K)[labels]), source(images, labels))
    torch.testing.assert_close(source(images, F.one_hot(labels, K)), source(images, labels))


def test_against_finite_differences() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 2 * 3, K)).double()
    images, labels = torch.randn(1, 1, 4, 5, dtype=torch.float64), torch.tensor([1])
    expected = torch.zeros(4, 5, dtype=torch.float64)
    for row in range(4):
        for column in range(5):
            ends = images.repeat(2, 1, 1, 1)
            ends[:, 0, row, column] += torch.tensor([1e-5, -1e-5], dtype=torch.float64)
            high, low = F.cross_entropy(model(ends), labels.expand(2), reduction="none")
            expected[row, column] = (high - low) / 2e-5
    torch.testing.assert_close(InputGradient(model)(images, labels)[0], expected.abs().detach(), rtol=1e-5, atol=1e-8)


def test_a_samples_map_depends_on_no_other_sample() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 3 * 4, K))
    images, labels = torch.randn(4, 3, 5, 6), torch.arange(4)
    source = InputGradient(model)
    torch.testing.assert_close(source(images[2:3], labels[2:3])[0], source(images, labels)[2])
    in_training = InputGradient(model, mode="current")
    assert not torch.allclose(in_training(images[:3], labels[:3])[2], in_training(images, labels)[2])


def test_the_training_pass_keeps_its_graph() -> None:
    model = linear_model()
    images, labels = torch.randn(3, 3, 5, 6), torch.tensor([2, 0, 3])
    logits, saliency = InputGradient(model).with_logits(model, images, labels)
    torch.testing.assert_close(saliency, InputGradient(model)(images, labels))
    F.cross_entropy(logits, labels).backward()
    got = model[1].weight.grad.clone()
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    torch.testing.assert_close(got, model[1].weight.grad)
    assert images.grad is None


def test_images_that_need_a_gradient_keep_theirs() -> None:
    model = linear_model()
    images, labels = torch.randn(3, 3, 5, 6, requires_grad=True), torch.tensor([2, 0, 3])
    logits, _ = InputGradient(model).with_logits(model, images, labels)
    assert images.grad is None
    logits.sum().backward()
    assert images.grad is not None


def test_norms_and_dtypes() -> None:
    gradient = torch.tensor([3.0, -4.0]).view(1, 2, 1, 1).expand(1, 2, 2, 2)
    assert gradient_saliency(gradient).unique().tolist() == [5.0]
    assert gradient_saliency(gradient, "max").unique().tolist() == [4.0]
    assert gradient_saliency(gradient.bfloat16()).dtype == torch.float32
    assert gradient_saliency(gradient.double()).dtype == torch.float64


def test_bad_input_is_named() -> None:
    model = linear_model()
    with pytest.raises(ValueError, match="of must be one of 'loss', 'score'; got 'logit'"):
        InputGradient(model, of="logit")
    with pytest.raises(ValueError, match="over must be one of 'l2', 'max'; got 'l1'"):
        InputGradient(model, over="l1")
    with pytest.raises(ValueError, match="labels must be given to input-gradient"):
        InputGradient(model)(torch.randn(3, 3, 5, 6))
    with pytest.raises(ValueError, match="labels must have one entry per image: expected 3, got 2"):
        InputGradient(model)(torch.randn(3, 3, 5, 6), torch.tensor([0, 1]))


class Frozen(nn.Module):
    """Features computed under no_grad, as by wrappers of pretrained backbones."""

    def __init__(self, head: bool) -> None:
        super().__init__()
        self.backbone, self.head = linear_model(), nn.Linear(K, K) if head else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.backbone(images)
        return self.head(features)


@pytest.mark.parametrize("head", [True, False])
def test_a_network_that_cuts_the_gradient_is_named(head: bool) -> None:
    with pytest.raises(ValueError, match=r"model must pass gradients to its images.*got none.*saliency_source="):
        InputGradient(Frozen(head))(torch.randn(3, 3, 5, 6), torch.tensor([2, 0, 3]))
