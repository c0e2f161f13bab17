"""Networks by name."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from saligraft.config.sections import NetworkSection
from saligraft.names import NETWORK_FORMS, SMALL_RESNET_DEPTHS
from saligraft.networks import NETWORKS, PyramidNet, SmallImageResNet, WideResNet, build_network
from saligraft.networks.resnet import BLOCKS_PER_STAGE


def test_wide_resnets_resolve_by_depth_and_width() -> None:
    network = build_network("wrn-16-3", num_classes=7, in_channels=2, dropout=0.3)
    assert isinstance(network, WideResNet)
    assert len(network.stages[0]) == 2
    assert network.num_features == 192
    assert network(torch.randn(2, 2, 12, 12)).shape == (2, 7)


def test_pyramidnets_resolve_by_depth_and_alpha() -> None:
    network = build_network("pyramidnet-20-24", num_classes=7, in_channels=2, shake_drop=True)
    assert isinstance(network, PyramidNet)
    assert [len(stage) for stage in network.stages] == [3, 3, 3]
    assert network.num_features == 40
    assert network(torch.randn(2, 2, 12, 12)).shape == (2, 7)


def test_small_resnets_resolve_by_depth() -> None:
    network = build_network("resnet-10-small", num_classes=7, in_channels=1, width=4, stem_stride=2)
    assert isinstance(network, SmallImageResNet)
    assert network.forward_features(torch.randn(2, 1, 64, 64)).shape == (2, 32, 4, 4)


@pytest.mark.parametrize(("name", "cells"), [("resnet-50", 7), ("resnet-50-loc", 14)])
def test_imagenet_resnets_resolve_by_depth(name: str, cells: int) -> None:
    with torch.device("meta"):
        network = build_network(name, num_classes=7, in_channels=1)
        assert network.forward_features(torch.randn(2, 1, 224, 224)).shape == (2, 2048, cells, cells)


def test_torchvision_is_imported_for_the_networks_that_need_it_alone() -> None:
    script = (
        "import sys; from saligraft.networks import build_network\n"
        "for name in ('wrn-10-1', 'pyramidnet-8-4', 'resnet-10-small', 'resnet-10'):\n"
        "    build_network(name, 2); print('torchvision' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["False", "False", "False", "True"], run.stderr


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18"])
def test_library_models_resolve(name: str) -> None:
    assert build_network(name, num_classes=5).eval()(torch.randn(1, 3, 64, 64)).shape == (1, 5)


def test_timm_takes_any_channel_count() -> None:
    assert build_network("timm:resnet18", 5, in_channels=1).eval()(torch.randn(1, 1, 64, 64)).shape == (1, 5)


def test_torchvision_refuses_other_channel_counts_and_names_a_way() -> None:
    with pytest.raises(ValueError, match=r"in_channels must be 3 for torchvision:resnet18.*got 1.*timm:NAME"):
        build_network("torchvision:resnet18", 5, in_channels=1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", 'unknown network "resnet"; valid: "wrn-DEPTH-WIDTH", "pyramidnet-DEPTH-ALPHA", "resnet-DEPTH'),
        (
            "vgg-16",
            'unknown network "vgg-16"; valid: .*"resnet-DEPTH-loc", "resnet-DEPTH", "torchvision:NAME", "timm:NAME"',
        ),
        ("wrn-wide", 'named "wrn-DEPTH-WIDTH"'),
        ("pyramidnet-200", 'named "pyramidnet-DEPTH-ALPHA"'),
        ("resnet-fifty", r'named .* or "resnet-DEPTH", .* got "resnet-fifty"'),
        ("resnet-50-big", r'named .* or "resnet-DEPTH", .* got "resnet-50-big"'),
        ("resnet-big-small", r'named "resnet-DEPTH-small" or .* got "resnet-big-small"'),
        ("resnet-51", "depth must be one of 10, 18, 34, 50, 101, 152; got 51"),
        ("resnet-50-small", "depth must be one of 10, 18, 34; got 50"),
        ("resnet18", 'unknown network "resnet18"; did you mean "resnet-18" or "resnet-18-small"\\? valid: "wrn-'),
        ("resnet50", 'did you mean "resnet-50"\\? valid'),
        ("wrn28-10", 'did you mean "wrn-28-10"\\? valid'),
        ("torchvision:resnet51", r'unknown network "torchvision:resnet51"; did you mean "torchvision:resnet50" or'),
        (
            "torchvision:vit",
            r'did you mean "torchvision:vit_b_16" or .*\? see torchvision.models.list_models\(\) \(\d+ names\)$',
        ),
        ("timm:convnext_tny", r'unknown network "timm:convnext_tny"; did you mean "timm:convnext_tiny"'),
        ("timm:ResNet-18", r'did you mean "timm:resnet18"'),
        ("timm:deit_small", r'did you mean "timm:deit_small_distilled_patch16_224" or "timm:deit_small_patch16_224"\?'),
        ("timm:foo", r'^unknown network "timm:foo"; see timm.list_models\(\) \(\d+ names\)$'),
        ("timm:", r'^unknown network "timm:"; see timm.list_models\(\) \(\d+ names\)$'),
    ],
)
def test_unknown_names_list_the_valid_ones(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(name, num_classes=5)


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("wrn-10-1", "dropuot", "wrn-10-1 has no option 'dropuot'; valid: stem_stride, dropout"),
        ("pyramidnet-20-24", "shake", "no option 'shake'; valid: stem_stride, bottleneck, shake_drop, shake_level"),
        ("resnet-18-small", "dropout", "resnet-18-small has no option 'dropout'; valid: width, stem_stride"),
        ("resnet-50", "large_map", "resnet-50 has no option 'large_map'; valid: zero_gamma, head_std"),
        ("resnet-50-loc", "large_map", "resnet-50-loc has no option 'large_map'; valid: zero_gamma, head_std"),
        ("timm:resnet18", "drop_rates", "timm:resnet18 has no option 'drop_rates'; valid: pretrained, global_pool"),
    ],
)
def test_unknown_options_list_the_valid_ones(name: str, option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(name, 5, **{option: True})


@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"])
@pytest.mark.parametrize("more", [{}, {"pretrained": True}])
def test_options_of_timm_that_open_files_do_not_reach_it(
    option: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timm.create_model", lambda *_, **__: pytest.fail("timm was asked"))
    options = {option: {"file": "weights.pth"} if "cfg" in option else "weights.pth", **more}
    with pytest.raises(ValueError, match=f"timm:resnet18 has no option '{option}'; valid: pretrained,"):
        build_network("timm:resnet18", 5, **options)
    with pytest.raises(ValueError, match=f"timm:resnet18 has no option '{option}'; valid: pretrained,"):
        NetworkSection(name="timm:resnet18", options=options)


def test_a_recipe_that_asks_for_pretrained_weights_is_checked_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timm.models._builder.load_pretrained", lambda *_, **__: pytest.fail("weights were loaded"))
    section = NetworkSection(name="timm:resnet18", options={"pretrained": True, "drop_rate": 0.1})
    assert section.options == {"pretrained": True, "drop_rate": 0.1}
    with pytest.raises(ValueError, match="wrn-10-1 has no option 'pretrained'"):
        NetworkSection(name="wrn-10-1", options={"pretrained": True})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("timm:resnet18.nonsense", {}),
        ("timm:resnet18", {"act_layer": "nonsense"}),
        ("timm:resnet18", {"output_stride": 5}),
        ("timm:vit_tiny_patch16_224", {"num_heads": 0}),
        ("timm:vit_tiny_patch16_224", {"layers": [2, 2]}),
    ],
)
def test_what_timm_cannot_build_is_named(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{name} cannot be built: \S"):
        build_network(name, 5, **options)


def test_timm_s_options_reach_its_model() -> None:
    network = build_network("timm:vit_tiny_patch16_224", 5, img_size=32, depth=2, patch_size=8, class_token=False,
                            global_pool="avg", drop_path_rate=0.1)  # fmt: skip
    assert network.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    assert len(network.blocks) == 2


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match='network "timm:resnet18" needs timm: pip install timm'):
        build_network("timm:resnet18", 5)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match='network "resnet-50-loc" needs torchvision: pip install torchvision'):
        build_network("resnet-50-loc", 5)


def test_every_pattern_says_what_it_is() -> None:
    assert all(build.__doc__ for build in NETWORKS.values())


def test_every_form_of_a_name_builds_a_network() -> None:
    assert tuple(NETWORKS) == NETWORK_FORMS
    assert tuple(BLOCKS_PER_STAGE) == SMALL_RESNET_DEPTHS
