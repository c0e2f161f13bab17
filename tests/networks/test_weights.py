"""Weights from files: both formats, heads for other classes, and everything that does not fit."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from saligraft.networks import build_network
from saligraft.networks.weights import find_head, load_weights_file


def saved(network: nn.Module, folder: Path, suffix: str) -> Path:
    file = folder / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(network.state_dict(), file)
    else:
        torch.save(network.state_dict(), file)
    return file


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("name", ["wrn-10-1", "resnet-10"])
def test_weights_come_back(name: str, suffix: str, tmp_path: Path) -> None:
    source, network = build_network(name, 4).eval(), build_network(name, 4).eval()
    load_weights_file(network, saved(source, tmp_path, suffix))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(network(images), source(images))


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet-10", "timm:resnet10t"])
def test_a_head_for_other_classes_is_new_and_all_else_is_loaded(name: str, tmp_path: Path) -> None:
    source, network = build_network(name, 9), build_network(name, 4)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    with pytest.warns(UserWarning, match="has 9 classes, not 4: a new head is initialised"):
        load_weights_file(network, saved(source, tmp_path, ".pth"))
    theirs, after = source.state_dict(), network.state_dict()
    for key, value in after.items():
        same_shape = value.shape == theirs[key].shape
        assert torch.equal(value, theirs[key] if same_shape else before[key]), key
    assert sum(value.shape != theirs[key].shape for key, value in after.items()) == 2


@pytest.mark.parametrize("key", ["state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model."])
def test_checkpoints_of_training_scripts_are_unwrapped(key: str, prefix: str, tmp_path: Path) -> None:
    source, network = build_network("wrn-10-1", 4), build_network("wrn-10-1", 4)
    state = {f"{prefix}{name}": value for name, value in source.state_dict().items()}
    torch.save({"epoch": 3, key: state, "optimizer": {"state": {}}}, tmp_path / "checkpoint.pth")
    save_file(state, tmp_path / "weights.safetensors")
    for file in ("checkpoint.pth", "weights.safetensors"):
        for value in network.state_dict().values():
            value.zero_()
        load_weights_file(network, tmp_path / file)
        for name, value in network.state_dict().items():
            assert torch.equal(value, source.state_dict()[name]), name


def test_checkpoints_of_timms_script_hold_its_arguments(tmp_path: Path) -> None:
    source, network = build_network("wrn-10-1", 4), build_network("wrn-10-1", 4)
    state = {"args": Namespace(model="wrn", aug_splits=0), "state_dict": source.state_dict()}
    torch.save(state, tmp_path / "last.pth.tar")
    load_weights_file(network, tmp_path / "last.pth.tar")
    assert torch.equal(network.stem.weight, source.stem.weight)


class Evil:
    """Runs code when a pickle of it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit",)


@pytest.mark.parametrize("hide", [lambda evil: evil, lambda evil: Namespace(model=evil)], ids=["bare", "in arguments"])
def test_a_pickle_that_runs_code_is_refused(hide: Callable[[Evil], Any], tmp_path: Path) -> None:
    network = build_network("wrn-10-1", 4)
    torch.save({"args": hide(Evil()), "state_dict": network.state_dict()}, tmp_path / "evil.pth")
    with pytest.raises(ValueError, match="it holds Python objects, which are not loaded"):
        load_weights_file(network, tmp_path / "evil.pth")


def test_the_folder_of_a_run_stands_for_its_weights(tmp_path: Path) -> None:
    source, network = build_network("wrn-10-1", 4), build_network("wrn-10-1", 4)
    with pytest.raises(ValueError, match=r"model\.safetensors, which does not exist"):
        load_weights_file(network, tmp_path)
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    load_weights_file(network, tmp_path)
    assert torch.equal(network.stem.weight, source.stem.weight)


@pytest.mark.parametrize("name", ["wrn-10-1", "timm:resnet10t"])
def test_weights_without_a_head_leave_the_head_as_it_is(name: str, tmp_path: Path) -> None:
    source, network = build_network(name, 4), build_network(name, 4)
    head = {id(parameter) for parameter in find_head(source)}
    names = {each for each, parameter in source.named_parameters() if id(parameter) in head}
    before = {each: network.state_dict()[each].clone() for each in names}
    weights = {each: value for each, value in source.state_dict().items() if each not in names}
    torch.save(weights, tmp_path / "backbone.pth")
    with pytest.warns(UserWarning, match="has no head: a new head is initialised"):
        load_weights_file(network, tmp_path / "backbone.pth")
    for each, value in network.state_dict().items():
        assert torch.equal(value, {**before, **weights}[each]), each


def test_a_layer_may_be_named_like_a_prefix(tmp_path: Path) -> None:
    for names in (["module"], ["module", "head"]):
        source, network = (nn.ModuleDict({name: nn.Linear(2, 2) for name in names}) for _ in range(2))
        load_weights_file(network, saved(source, tmp_path, ".pth"))
        assert torch.equal(network["module"].weight, source["module"].weight)


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    network = build_network("wrn-10-1", 4)
    (tmp_path / "noise.pth").write_bytes(b"noise")
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save(network, tmp_path / "module.pth")  # a pickle that would run code
    part = network.state_dict()
    part.pop("stem.weight")
    torch.save(part, tmp_path / "part.pth")
    torch.save({**network.state_dict(), "more.weight": torch.ones(1)}, tmp_path / "more.pth")
    saved(build_network("wrn-10-2", 4), tmp_path, ".pth")
    for file, words in (
        ("none.pth", "network.weights must be a file of weights"),
        ("noise.pth", "cannot be read as weights"),
        ("noise.safetensors", "cannot be read as weights"),
        ("module.pth", "cannot be read as weights"),
        ("list.pth", "must hold a state dict, tensors by name, got list"),
        ("part.pth", "it lacks stem.weight"),
        ("more.pth", "it holds, unlike the network, more.weight"),
        ("weights.pth", "does not fit the network: size mismatch"),
    ):
        with pytest.raises(ValueError, match=file) as raised:
            load_weights_file(network, tmp_path / file)
        assert words in str(raised.value)
        assert "\n" not in str(raised.value)
