"""The layer that is found: a table of named networks, and a small network for every rule of the search."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from saligraft.saliency.capture import SaliencyCapture


def maps(features):  # (B, C, h, w)
    return features.abs().sum(1)


def relu_maps(features):
    return features.clamp(min=0).sum(1)


def channels_last(features):  # (B, h, w, C)
    return features.abs().sum(3)


def tokens(prefix):  # (B, N, C)
    return lambda features: features[:, prefix:].abs().sum(2)


# network, options, image H W -> layer, map h w; and a reference: Σ|A| from a hook of the test's own, read by hand
TABLE = [
    ("torchvision:resnet18", {}, (64, 96), "layer4", (2, 3), "layer4", maps),
    ("torchvision:resnet50", {}, (64, 64), "layer4", (2, 2), "layer4.2", maps),
    ("torchvision:wide_resnet50_2", {}, (64, 64), "layer4", (2, 2), "layer4.2", maps),
    ("torchvision:vgg16", {"init_weights": False}, (32, 64), "features", (1, 2), "features.30", maps),
    # Here the features' last pooling gives 1 x 1 already, which the head's adaptive pooling stretches to 7 x 7.
    ("torchvision:vgg16_bn", {"init_weights": False}, (32, 32), "features.42", (2, 2), "features.42", maps),
    ("torchvision:densenet121", {}, (64, 64), "features", (2, 2), "features.norm5", relu_maps),
    ("torchvision:convnext_tiny", {}, (64, 64), "features", (2, 2), "features.7", maps),
    ("torchvision:mobilenet_v3_small", {}, (64, 64), "features", (2, 2), "features.12", maps),
    ("torchvision:efficientnet_b0", {}, (64, 64), "features", (2, 2), "features.8", maps),
    ("torchvision:regnet_y_400mf", {}, (64, 64), "trunk_output", (2, 2), "trunk_output.block4", maps),
    ("torchvision:squeezenet1_1", {}, (64, 64), "classifier.2", (3, 3), "classifier.2", maps),
    ("torchvision:swin_t", {}, (64, 96), "features", (2, 3), "features.7", channels_last),
    (
        "torchvision:vit_b_16",
        {"image_size": 64},
        (64, 64),
        "encoder.layers",
        (4, 4),
        "encoder.layers",
        tokens(1),
    ),
    ("timm:resnet18", {}, (64, 64), "layer4", (2, 2), "layer4.1", maps),
    ("timm:efficientnet_b0", {}, (64, 64), "bn2", (2, 2), "bn2", maps),
    ("timm:deit_tiny_patch16_224", {"img_size": (32, 64)}, (32, 64), "blocks", (2, 4), "blocks.11", tokens(1)),
    ("timm:deit_tiny_distilled_patch16_224", {"img_size": 32}, (32, 32), "blocks", (2, 2), "blocks.11", tokens(2)),
    ("timm:vit_small_patch14_reg4_dinov2", {"img_size": (28, 42)}, (28, 42), "blocks", (2, 3), "blocks.11", tokens(5)),
    ("timm:vit_small_patch14_reg4_dinov2", {"img_size": 28}, (28, 28), "blocks", (2, 2), "blocks.11", tokens(5)),
    (
        "timm:swin_tiny_patch4_window7_224",
        {"img_size": (64, 96)},
        (64, 96),
        "layers",
        (2, 3),
        "layers.3",
        channels_last,
    ),
    ("timm:vit_base_patch32_siglip_256", {"depth": 1}, (256, 256), "blocks", (8, 8), "blocks.0", tokens(0)),
]


def build(network, options):
    library, name = network.split(":")
    if library == "timm":
        return pytest.importorskip("timm").create_model(name, pretrained=False, num_classes=10, **options)
    return getattr(pytest.importorskip("torchvision").models, name)(weights=None, num_classes=10, **options)


@pytest.mark.parametrize(("network", "options", "image", "layer", "grid", "reference", "read"), TABLE)
def test_the_layer_and_map_of_named_networks(network, options, image, layer, grid, reference, read):
    model = build(network, options).eval()
    images = torch.randn(2, 3, *image)
    kept = []
    handle = model.get_submodule(reference).register_forward_hook(lambda *call: kept.append(read(call[2]).detach()))
    logits = model(images)
    handle.remove()

    capture = SaliencyCapture(model)
    for _ in range(2):  # the call that finds the layer, and one that knows it
        captured_logits, saliency = capture(images)
        assert capture.layer_name == layer
        assert saliency.shape == (2, *grid)
        torch.testing.assert_close(saliency.flatten(1), kept[0].flatten(1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(captured_logits, logits, rtol=1e-4, atol=1e-4)


class Functional(nn.Module):
    """Convolution and norm as modules, the rest as functions, which the test chooses."""

    def __init__(self, after_norm, pool):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.pool = pool if isinstance(pool, nn.Module) else None
        self.after_norm, self.pool_function = after_norm, pool

    def forward(self, images):
        features = self.after_norm(self.norm(self.conv(images)))
        pooled = self.pool(features) if self.pool is not None else self.pool_function(features)
        return self.fc(pooled.flatten(1))


def mean(features):
    return features.mean((2, 3))


@pytest.mark.parametrize("pool", [mean, nn.AdaptiveAvgPool2d(1)], ids=["functional", "module"])
@pytest.mark.parametrize(
    "activation",
    [
        F.relu,
        torch.relu,
        lambda x: F.relu(x, inplace=True),
        lambda x: F.relu(x, True),
        torch.relu_,
        lambda x: x.relu(),
        F.silu,
        lambda x: F.leaky_relu(x, 0.3, True),
        lambda x: F.elu(x, alpha=0.5, inplace=True),
        lambda x: F.gelu(x, approximate="tanh"),
    ],
)
def test_a_functional_activation_before_pooling_counts(activation, pool):
    model, images = Functional(activation, pool).eval(), torch.randn(2, 3, 8, 6)
    features = activation(model.norm(model.conv(images)).detach())
    capture = SaliencyCapture(model)
    for _ in range(2):
        torch.testing.assert_close(capture(images)[1], features.abs().sum(1))
    assert capture.layer_name == ("norm" if pool is mean else "pool")


def test_what_a_pooling_module_receives_counts_after_any_function():
    model = Functional(lambda x: (x * 3).flip(3), nn.AdaptiveAvgPool2d(1)).eval()
    images = torch.randn(2, 3, 8, 8)
    expected = (model.norm(model.conv(images)) * 3).flip(3).abs().sum(1).detach()
    capture = SaliencyCapture(model)
    for _ in range(2):
        torch.testing.assert_close(capture(images)[1], expected)
    assert (capture.site.name, capture.site.side) == ("pool", "input")


class SharedActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True)
        self.hidden, self.fc = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, images):
        return self.fc(self.act(self.hidden(self.act(self.conv(images)).mean((2, 3)))))


def test_a_module_used_for_maps_and_vectors_gives_its_map():
    model, images = SharedActivation(), torch.randn(2, 3, 8, 8)
    capture = SaliencyCapture(model)
    for _ in range(2):
        torch.testing.assert_close(capture(images)[1], model.conv(images).relu().sum(1).detach())
    assert capture.layer_name == "act"


class SequenceFirst(nn.Module):
    """As CLIP's image tower: (N, B, C) inside, the class token alone leaves it."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, enable_nested_tensor=False
        )
        self.fc = nn.Linear(8, 4)

    def forward(self, images):
        patches = self.patch(images).flatten(2).permute(2, 0, 1)
        return self.fc(self.body(torch.cat([self.token.expand(1, len(images), 8), patches]))[0])


def test_tokens_before_the_batch_axis():
    model, images = SequenceFirst(), torch.randn(3, 3, 8, 16)
    capture = SaliencyCapture(model)
    kept = []
    # Its blocks end in a norm, which makes all cells about equal: the map is what that receives.
    handle = model.body.layers[1].norm2.register_forward_pre_hook(lambda *call: kept.append(call[1][0].detach()))
    for _ in range(2):
        _, saliency = capture(images)
        torch.testing.assert_close(saliency, kept[-1][1:].abs().sum(2).T.reshape(3, 2, 4))
    handle.remove()
    assert str(capture.site) == "input of 'body.layers.1.norm2'"


class DropsPatches(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.norm, self.fc = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Linear(8, 4)
        self.embed = nn.Sequential(self.patch, nn.Flatten(2))
        self.transposed = nn.LayerNorm(8)

    def forward(self, images):
        tokens = self.transposed(self.embed(images).transpose(1, 2))
        return self.fc(self.norm(tokens[:, :10]).mean(1))


def test_dropped_patches_are_refused_not_misread():
    capture = SaliencyCapture(DropsPatches())
    with pytest.raises(ValueError, match=r"tokens of shape \(2, 10, 8\), as when patches are dropped"):
        capture(torch.randn(2, 3, 16, 16))
    assert capture.layer_name is None


class LayerNorm2d(nn.LayerNorm):
    """As timm's and torchvision's: a norm of each cell, channels first."""

    def forward(self, features):
        return super().forward(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def head(channels):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 4)


@pytest.mark.parametrize(
    ("tail", "layer"),
    [
        ([LayerNorm2d(16)], "0"),  # cells of one size would make a flat map
        ([LayerNorm2d(16), nn.ReLU()], "2"),
        ([LayerNorm2d(16), nn.ReLU(inplace=True)], "2"),
        ([nn.GroupNorm(4, 16)], "1"),  # of the whole map
        ([nn.InstanceNorm2d(16)], "1"),
        ([nn.BatchNorm2d(16)], "1"),
    ],
    ids=["last", "activated", "activated in place", "group", "instance", "batch"],
)
def test_before_a_norm_of_each_cell_of_a_map(tail, layer):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), *tail, *head(16))
    capture = SaliencyCapture(model)
    images = torch.randn(2, 3, 12, 12) * (1 + 4 * (torch.arange(12) > 6))
    _, saliency = capture(images)
    assert capture.layer_name == layer
    features = model[: int(layer) + 1](images)
    torch.testing.assert_close(saliency, features.abs().sum(1).detach())


def test_an_identity_is_not_named():
    class IdleNorm(nn.Module):
        """As timm's transformers that normalise after pooling."""

        def __init__(self):
            super().__init__()
            self.stem, self.norm, self.fc = nn.Conv2d(3, 8, 4, 4), nn.Identity(), nn.Linear(8, 4)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, 1), nn.GELU())])

        def forward(self, images):
            return self.fc(self.norm(self.blocks[0](self.stem(images))).mean((2, 3)))

    capture = SaliencyCapture(IdleNorm())
    capture(torch.randn(2, 3, 16, 16))
    assert str(capture.site) == "output of 'blocks.0'"


class SequenceOfPatches(nn.Module):
    """A transformer on what a convolution cuts from signals (B, C, L) or videos (B, C, T, H, W)."""

    def __init__(self, patch, *, sequence_first=False):
        super().__init__()
        self.patch, self.fc, self.sequence_first = patch, nn.Linear(16, 4), sequence_first
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=not sequence_first)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, inputs):
        tokens = self.patch(inputs).flatten(2)
        tokens = tokens.permute(2, 0, 1) if self.sequence_first else tokens.transpose(1, 2)
        return self.fc(self.body(tokens).mean(0 if self.sequence_first else 1))


@pytest.mark.parametrize("sequence_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("patch", "shape"),
    [(nn.Conv1d(1, 16, 8, 8), (3, 1, 80)), (nn.Conv3d(3, 16, 4, 4), (3, 3, 8, 16, 16))],
    ids=["signal", "video"],
)
def test_transformers_of_videos_and_signals_are_refused(patch, shape, training, sequence_first):
    model = SequenceOfPatches(patch, sequence_first=sequence_first).train(training)
    with pytest.raises(ValueError, match=r"after the output of 'patch' it works on tokens.*saliency_source="):
        SaliencyCapture(model)(torch.randn(shape))
    assert SaliencyCapture(model, layer="patch")(torch.randn(shape))[1].shape[0] == 3


def test_a_signal_network_with_norms_of_channels_keeps_its_last_map():
    class Block(nn.Module):
        """As ConvNeXt's: channels last inside."""

        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.mix = nn.Conv1d(8, 8, 3, padding=1), nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, features):
            return features + self.mix(self.norm(self.conv(features).transpose(1, 2))).transpose(1, 2)

    model = nn.Sequential(nn.Conv1d(1, 8, 4, 4), Block(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))
    capture = SaliencyCapture(model)
    capture(torch.randn(2, 1, 40))
    assert str(capture.site) == "output of '1'"


class NormBeforePooling(nn.Module):
    """Convolutions, and a norm of channels in the last axis before pooling."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.norm, self.fc = layer, nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, inputs):
        return self.fc(self.norm(self.layer(inputs).flatten(2).transpose(1, 2)).mean(1))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv1d(1, 8, 4, 4), (3, 1, 40)), (nn.Conv3d(3, 8, 4, 4), (3, 3, 8, 16, 16))],
    ids=["signal", "video"],
)
def test_a_norm_before_pooling_makes_no_transformer(layer, shape):
    capture = SaliencyCapture(NormBeforePooling(layer))
    capture(torch.randn(shape))
    assert str(capture.site) == "output of 'layer'"


def test_a_multilayer_perceptron_is_refused_with_its_modules_listed():
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.raises(ValueError, match=r"map of the image.*1 \(2, 16\); 2 \(2, 16\); 3 \(2, 4\)"):
        SaliencyCapture(model)(torch.randn(2, 3, 8, 8))


def test_the_image_itself_is_no_map():
    model = nn.Sequential(nn.Dropout(0.1), nn.Identity(), nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(ValueError, match="none was found for 8x8 images"):
        SaliencyCapture(model)(torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize(
    ("layers", "nonnegative"),
    [
        ([nn.Conv2d(3, 4, 3), nn.ReLU()], True),
        ([nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)], True),
        ([nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())], True),
        ([nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)], False),
        ([nn.Conv2d(3, 4, 3), nn.SiLU()], False),
        ([nn.ReLU(), nn.Conv2d(3, 4, 3)], False),
    ],
)
def test_a_map_from_a_relu_needs_no_absolute_values(layers: list[nn.Module], nonnegative: bool) -> None:
    """Otherwise negative features would be subtracted from the map."""
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    capture = SaliencyCapture(network)
    images = torch.randn(2, 3, 8, 8)
    _, saliency = capture(images)
    assert capture.site.nonnegative is nonnegative
    features = network[: len(layers)](images)
    torch.testing.assert_close(saliency, features.abs().sum(dim=1))


def test_a_relu_whose_output_is_changed_in_place_is_none() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            features = torch.relu(self.convolution(images))
            features -= 1
            return self.head(nn.functional.adaptive_avg_pool2d(features, 1).flatten(1))

    capture = SaliencyCapture(Shifted(), layer="convolution")
    capture(torch.randn(2, 3, 8, 8))
    assert not capture.site.nonnegative
