"""Networks by name."""

import sys

import pytest
import torch

from saligraft.networks import NETWORKS, WideResNet, build_network


def test_wide_resnets_resolve_by_depth_and_width() -> None:
    network = build_network("wrn-16-3", num_classes=7, in_channels=2, dropout=0.3)
    assert isinstance(network, WideResNet)
    assert len(network.stages[0]) == 2
    assert network.num_features == 192
    assert network(torch.randn(2, 2, 12, 12)).shape == (2, 7)


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
        ("resnet", 'unknown network "resnet"; valid: "wrn-DEPTH-WIDTH", "torchvision:NAME", "timm:NAME"'),
        ("wrn-wide", 'named "wrn-DEPTH-WIDTH"'),
        ("torchvision:resnet51", r'unknown network "torchvision:resnet51"; did you mean .*resnet50'),
        ("timm:convnext_tny", r'unknown network "timm:convnext_tny"; did you mean convnext_tiny'),
        ("timm:zzzzzzzz", r"timm lists \d+ models"),
    ],
)
def test_unknown_names_list_the_valid_ones(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_network(name, num_classes=5)


def test_unknown_options_list_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="wrn-10-1 has no option 'dropuot'; valid: dropout"):
        build_network("wrn-10-1", 5, dropuot=0.1)


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match='network "timm:resnet18" needs timm: pip install timm'):
        build_network("timm:resnet18", 5)


def test_every_pattern_says_what_it_is() -> None:
    assert all(build.__doc__ for build in NETWORKS.values())
