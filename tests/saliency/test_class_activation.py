"""CAM and Grad-CAM: their formulas by loops, their known equality, and the heads they do and do not suit."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saligraft.saliency import (
    ClassActivation,
    GradCam,
    class_activation_map,
    gradient_activation_map,
)

B, C, K, H, W = 3, 6, 5, 4, 7


class Pooled(nn.Module):
    """Convolution, activation by a module, by a function or by a function in place, pooling, and a head."""

    def __init__(self, activation: str = "module", head: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C))
        self.relu = nn.ReLU(inplace=True) if activation == "module" else nn.Identity()
        self.activation = activation
        self.head = head or nn.Linear(C, K)

    def forward_features(self, images: Tensor) -> Tensor:
        features = self.relu(self.trunk(images))
        return F.relu(features, inplace=self.activation == "in place") if self.activation != "module" else features

    def forward(self, images: Tensor) -> Tensor:
        features = self.forward_features(images)
        return self.head(F.adaptive_avg_pool2d(features, 1).flatten(1))


class Entries(dict[str, Any]):
    """An output of a class of its own, as those of Transformers are."""


class InEntries(Pooled):
    """Its features leave the trunk inside other values."""

    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]) -> None:
        super().__init__()

        class Trunk(nn.Module):
            def __init__(self, trunk: nn.Module) -> None:
                super().__init__()
                self.layers = nn.Sequential(trunk, nn.ReLU())

            def forward(self, images: Tensor) -> Any:
                return wrap(self.layers(images))

        self.trunk, self.unwrap = Trunk(self.trunk), unwrap

    def forward_features(self, images: Tensor) -> Tensor:
        return self.unwrap(self.trunk(images))


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda x: Entries(hidden=None, map=x), lambda out: out["map"]),
        (lambda x: (None, [x, 1]), lambda out: out[1][0]),
    ],
    ids=["mapping", "nested tuple"],
)
def test_grad_cam_reads_features_inside_other_outputs(wrap: Any, unwrap: Any) -> None:
    torch.manual_seed(0)
    model = InEntries(wrap, unwrap)
    images, labels = torch.rand(B, 3, H, W), torch.arange(B)
    maps = GradCam(model, "trunk")(images, labels)  # its own pass, without gradients before the layer
    assert maps.abs().sum() > 0
    torch.testing.assert_close(maps, GradCam(model, "trunk.layers")(images, labels))


@pytest.fixture
def features(generator: torch.Generator) -> Tensor:
    return torch.randn(B, C, H, W, generator=generator)


@pytest.fixture
def weight(generator: torch.Generator) -> Tensor:
    return torch.randn(K, C, generator=generator)


def test_cam_by_loops(features: Tensor, weight: Tensor) -> None:
    labels = torch.tensor([4, 0, 4])
    evidence = torch.stack(
        [sum(weight[label, c] * features[i, c] for c in range(C)) for i, label in enumerate(labels.tolist())]
    )
    torch.testing.assert_close(class_activation_map(features, weight, labels), evidence.relu())
    shifted = evidence - evidence.flatten(1).min(dim=1).values[:, None, None]
    torch.testing.assert_close(class_activation_map(features, weight, labels, negative="shift"), shifted)


def test_rows_of_labels_weight_the_classes(features: Tensor, weight: Tensor) -> None:
    labels = torch.tensor([4, 0, 4])
    one_hot = class_activation_map(features, weight, F.one_hot(labels, K))
    torch.testing.assert_close(one_hot, class_activation_map(features, weight, labels))
    rows = torch.zeros(B, K)
    rows[:, 1], rows[:, 3] = 0.25, 0.75
    mixed = torch.einsum("bchw,c->bhw", features, 0.25 * weight[1] + 0.75 * weight[3]).relu()
    torch.testing.assert_close(class_activation_map(features, weight, rows), mixed)


def test_the_evidence_averages_to_the_logit(features: Tensor) -> None:
    """What makes CAM an attribution: pooled over cells, the evidence is the logit less its bias."""
    head = nn.Linear(C, K)
    logits = head(features.mean(dim=(2, 3)))
    for label in range(K):
        labels = torch.full((B,), label)
        positive = class_activation_map(features, head.weight, labels)
        negative = class_activation_map(features, -head.weight, labels)
        torch.testing.assert_close((positive - negative).mean(dim=(1, 2)) + head.bias[label], logits[:, label])


def test_grad_cam_by_loops(features: Tensor, generator: torch.Generator) -> None:
    gradient = torch.randn(B, C, H, W, generator=generator)
    expected = torch.stack([sum(gradient[i, c].mean() * features[i, c] for c in range(C)).relu() for i in range(B)])
    torch.testing.assert_close(gradient_activation_map(features, gradient), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(features: Tensor, weight: Tensor, dtype: torch.dtype) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert class_activation_map(features.to(dtype), weight.to(dtype), torch.arange(B)).dtype == wide
    assert gradient_activation_map(features.to(dtype), features.to(dtype)).dtype == wide


@pytest.mark.parametrize("activation", ["module", "function", "in place"])
@pytest.mark.parametrize("labels", ["index", "rows"])
@pytest.mark.parametrize("size", [(8, 8), (12, 7)])
def test_both_are_one_where_the_head_pools_and_is_linear(activation: str, labels: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Pooled(activation).eval()
    images, truth = torch.randn(5, 3, *size), torch.arange(5)
    targets = truth if labels == "index" else torch.eye(K)[truth] * 0.7 + 0.3 / K
    weight = model.head.weight[truth] if labels == "index" else targets @ model.head.weight
    expected = torch.einsum("bchw,bc->bhw", model.forward_features(images), weight).relu().detach()
    assert expected.max() > 0
    cells = size[0] * size[1]
    for source, scale in ((ClassActivation(model), 1), (GradCam(model), cells)):
        torch.testing.assert_close(source(images, targets) * scale, expected)
        logits, saliency = source.with_logits(model, images, targets)
        torch.testing.assert_close(saliency * scale, expected)
        torch.testing.assert_close(logits, model(images))


def test_grad_cam_suits_a_head_of_several_layers() -> None:
    torch.manual_seed(0)
    model = Pooled(head=nn.Sequential(nn.Linear(C, 9), nn.Tanh(), nn.Linear(9, K))).eval()
    images, labels = torch.randn(2, 3, 8, 8), torch.tensor([1, 3])
    features = model.forward_features(images).detach().requires_grad_()
    logits = model.head(features.mean(dim=(2, 3)))
    (slopes,) = torch.autograd.grad(logits[0, 1] + logits[1, 3], features)
    torch.testing.assert_close(GradCam(model)(images, labels), gradient_activation_map(features, slopes))
    with pytest.raises(ValueError, match=r'classifier must take the 6 channels .* 8x8 .* it takes 9.* use "grad-cam"'):
        ClassActivation(model)(images, labels)


def test_a_network_without_a_linear_layer_is_refused_by_cam() -> None:
    model = nn.Sequential(nn.Conv2d(3, K, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r'model must end in a linear layer for CAM, got a Sequential.*use "grad-cam"'):
        ClassActivation(model)
    unfit = nn.Sequential(nn.Conv2d(3, 7, 1), nn.Conv2d(7, K, 3), *model[1:])
    with pytest.raises(ValueError, match="model must end in a linear layer for CAM, got none that returns the logits"):
        ClassActivation(unfit)(torch.randn(2, 3, 8, 8), torch.tensor([1, 3]))


def test_a_frozen_trunk_still_gives_grad_cam_and_trains_its_head() -> None:
    torch.manual_seed(0)
    model = Pooled().eval()
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    expected = GradCam(model)(images, labels)
    model.trunk.requires_grad_(False)
    logits, saliency = GradCam(model).with_logits(model, images, labels)
    torch.testing.assert_close(saliency, expected)
    logits.sum().backward()
    assert model.head.weight.grad is not None
    assert all(parameter.grad is None for parameter in model.trunk.parameters())


def test_a_layer_without_a_say_in_the_logits_is_named() -> None:
    class Aside(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            self.relu(self.trunk(images))
            return self.head(images.new_ones(len(images), C))

    model = Aside()
    with pytest.raises(ValueError, match="must influence the logits"):
        GradCam(model, "relu")(torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))


@pytest.mark.parametrize("separate_head", [False, True])
def test_a_network_under_no_grad_gives_maps_or_is_refused(separate_head: bool) -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = Pooled(), nn.Linear(K, K)

        def forward(self, images: Tensor) -> Tensor:
            with torch.no_grad():
                logits = self.backbone(images)
            return self.head(logits) if separate_head else logits

    model, images, labels = Frozen(), torch.randn(4, 3, 8, 8), torch.arange(4)
    if separate_head:
        with pytest.raises(ValueError, match="must influence the logits"):
            GradCam(model)(images, labels)
    else:
        torch.testing.assert_close(GradCam(model)(images, labels), GradCam(model.backbone)(images, labels))


def test_tokens_of_a_transformer() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, C, 4, stride=4)
            self.prefix = nn.Parameter(torch.randn(1, 1, C))
            self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, K)

        def forward(self, images: Tensor) -> Tensor:
            tokens = self.patch(images).flatten(2).transpose(1, 2)
            tokens = self.norm(torch.cat((self.prefix.expand(len(images), 1, C), tokens), dim=1))
            return self.head(tokens[:, 1:].mean(dim=1))

    torch.manual_seed(0)
    model = Tokens().eval()
    labels = torch.tensor([2, 0])
    for size in ((16, 24), (24, 16), (32, 32)):
        images = torch.randn(2, 3, *size)
        grid = (size[0] // 4, size[1] // 4)
        tokens = model.norm(model.patch(images).flatten(2).transpose(1, 2))
        expected = (tokens @ model.head.weight[labels][:, :, None]).relu().reshape(2, *grid).detach()
        cam, grad_cam = ClassActivation(model)(images, labels), GradCam(model, "norm")(images, labels)
        torch.testing.assert_close(cam, expected)
        torch.testing.assert_close(grad_cam * grid[0] * grid[1], expected)


def test_a_classifier_and_a_layer_by_name() -> None:
    torch.manual_seed(0)
    model = Pooled().eval()
    model.other = nn.Linear(C, K)
    images, labels = torch.randn(2, 3, 8, 8), torch.tensor([1, 3])
    features = model.trunk(images).clone()
    got = ClassActivation(model, "trunk", classifier="other", negative="shift")(images, labels)
    torch.testing.assert_close(got, class_activation_map(features, model.other.weight, labels, "shift"))


def test_bad_input_is_named(features: Tensor, weight: Tensor) -> None:
    labels = torch.arange(B)
    with pytest.raises(ValueError, match="weight must have one column per channel of features, 6, got 5"):
        class_activation_map(features, weight[:, :5], labels)
    with pytest.raises(ValueError, match="labels must have one column per class, 5, got 4"):
        class_activation_map(features, weight, torch.rand(B, 4))
    with pytest.raises(ValueError, match="negative must be one of 'clamp', 'shift'; got 'abs'"):
        class_activation_map(features, weight, labels, "abs")
    with pytest.raises(ValueError, match=r"gradient must have the shape of features, \(3, 6, 4, 7\), got"):
        gradient_activation_map(features, features[:, :2])
    with pytest.raises(ValueError, match="classifier must be one of 'head'; got 'fc'"):
        ClassActivation(Pooled(), classifier="fc")
    with pytest.raises(ValueError, match=r"labels must be given to cam, .* got None"):
        ClassActivation(Pooled())(torch.randn(2, 3, 8, 8))


class Twice(nn.Module):
    """One ReLU in trunk and head, an auxiliary classifier of another size, and a 1 × 1 convolution as classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.relu = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()
        self.auxiliary = nn.Linear(6, K + 2)
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
    assert source.classifier == "classifier"
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


class ClassToken(nn.Module):
    """A vision transformer whose logits come from its class token alone, if asked with a head of zeros."""

    def __init__(self, zero_head: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        layers = (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True) for _ in range(3))
        self.blocks, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(8), nn.Linear(8, K)
        if zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        tokens = torch.cat([self.token.expand(len(images), 1, 8), self.patch(images).flatten(2).transpose(1, 2)], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


@pytest.mark.parametrize("zero_head", [False, True])
def test_grad_cam_takes_the_last_map_that_influences_the_class_token(zero_head: bool) -> None:
    model, labels = ClassToken(zero_head), torch.tensor([0, 1])
    images, source = torch.randn(2, 3, 16, 16), GradCam(model)
    state = torch.get_rng_state()
    source(images, labels)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(source.site) == "output of 'blocks.1'"
    assert model.token.grad is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    nn.init.normal_(model.head.weight)  # trained since
    assert source(images, labels).any()
    last = GradCam(model, layer="blocks.2")
    assert not last(images, labels).any()


def test_cam_reads_what_the_classifier_reads_after_the_last_norm() -> None:
    source = ClassActivation(ClassToken(zero_head=False))
    source(torch.randn(2, 3, 16, 16), torch.tensor([0, 1]))
    assert source.site.name == "norm"


class MapAndToken(nn.Module):
    """As PiT: map and class token side by side, the last block's map is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last, self.head = nn.Conv2d(3, C, 3, padding=1), nn.Conv2d(C, C, 1), nn.Linear(C, K)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        self.last(features)
        return self.head(features.mean((2, 3)))


def test_grad_cam_passes_over_a_last_map_without_influence() -> None:
    source = GradCam(MapAndToken())
    assert source(torch.randn(B, 3, H, W), torch.arange(B)).any()
    assert source.where == "output of 'stem'"


def test_finding_the_map_leaves_checkpointed_layers_before_it_alone() -> None:
    """torch cannot compute single gradients through reentrant checkpoints."""

    class Checkpointed(Pooled):
        def forward_features(self, images: Tensor) -> Tensor:
            features = checkpoint(self.trunk[1], self.trunk[0](images), use_reentrant=True)
            return self.relu(features * 2)

    assert GradCam(Checkpointed())(torch.randn(B, 3, H, W), torch.arange(B)).any()


def test_grad_cam_reads_an_output_that_holds_nothing_but_the_map() -> None:
    """Outer ones hold the pooled map, too, which does not depend on the map that is returned beside it."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, C, 3, padding=1)

        def forward(self, images: Tensor) -> tuple[Tensor]:
            return (self.stem(images) * 2,)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            (features,) = self.inner(images)
            return features, features.mean((2, 3))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Outer(), nn.Linear(C, K)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.body(images)[1])

    source = GradCam(Whole())
    assert source(torch.randn(B, 3, H, W), torch.arange(B)).any()
    assert source.where == "output of 'body.inner'"
