"""DropBlock in networks: where it stands, that weights fit without it, and that it drops."""

import pytest
import torch

from saligraft.networks import build_network
from saligraft.regularizers import DropBlock, set_drop_block_progress

NAMES = ("wrn-16-1", "pyramidnet-14-12")  # two blocks a stage


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_every_block_of_the_last_two_stages(name: str) -> None:
    network = build_network(name, 10, drop_block={"keep_probability": 0.8, "block_size": 3})
    found = {path: module for path, module in network.named_modules() if isinstance(module, DropBlock)}
    assert set(found) == {f"stages.{stage}.{block}.drop_block" for stage in (1, 2) for block in (0, 1)}
    assert all(module.block_size == 3 for module in found.values())
    for path, module in found.items():  # the stage before the last drops a quarter as much, as by the authors
        assert module.keep_probability == pytest.approx(0.8 if path.startswith("stages.2") else 0.95)


@pytest.mark.parametrize("name", NAMES)
def test_weights_fit_networks_with_and_without_it(name: str) -> None:
    plain, dropping = build_network(name, 10), build_network(name, 10, drop_block={})
    dropping.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(plain.eval()(images), dropping.eval()(images))


@pytest.mark.parametrize("name", NAMES)
def test_complete_blocks_of_the_map_are_dropped_once_the_rate_has_grown(name: str) -> None:
    network = build_network(name, 10, drop_block={"keep_probability": 0.5, "block_size": 2}).train()
    images = torch.randn(8, 3, 32, 32)
    shares = []
    for progress in (0.0, 1.0):
        set_drop_block_progress(network, progress)
        with torch.no_grad():
            shares.append(float((network.stages(network.stem(images)) == 0).float().mean()))
    assert shares[0] < 0.01
    assert 0.3 < shares[1] < 0.6


def test_what_is_not_a_table_of_its_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"drop_block must be a table such as .*, got 7"):
        build_network("wrn-10-1", 10, drop_block=7)
    with pytest.raises(ValueError, match=r"argument of drop_block must be one of 'keep_probability', .*; got 'size'"):
        build_network("wrn-10-1", 10, drop_block={"size": 4})
    with pytest.raises(ValueError, match="block_size must be"):
        build_network("wrn-10-1", 10, drop_block={"block_size": 0})
