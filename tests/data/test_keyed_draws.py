"""Keyed draws: SplitMix64, and uniforms that depend on key and sample alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.data.keyed_draws import key, keyed_uniforms


def test_key_depends_on_every_part_and_on_their_order() -> None:
    keys = {key(*parts) for parts in [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 0, 0), (0, 0, 1), (-1,), (2**63,)]}
    assert len(keys) == 9
    assert all(0 <= each < 2**63 for each in keys)


def test_key_is_splitmix64() -> None:
    """The published first outputs of SplitMix64 for seed 0: one step of `key` is one output, less its lowest bit."""
    assert key(0) == 0xE220A8397B1DCDAF >> 1
    assert key(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4 >> 1


@given(seed=st.integers(0, 2**62), start=st.integers(0, 10**6))
def test_keyed_uniforms_depend_on_the_sample_alone(seed: int, start: int) -> None:
    index = torch.arange(start, start + 20)
    whole = keyed_uniforms(seed, index, 3)
    shuffled = torch.randperm(20)
    assert torch.equal(keyed_uniforms(seed, index[shuffled], 3), whole[shuffled])
    assert torch.equal(keyed_uniforms(seed, index[4:5], 3), whole[4:5])


def test_keyed_uniforms_are_uniform_and_uncorrelated() -> None:
    values = keyed_uniforms(key(3, 1), torch.arange(50_000), 4)
    assert ((values >= 0) & (values < 1)).all()
    torch.testing.assert_close(values.mean(dim=0), torch.full((4,), 0.5), atol=0.01, rtol=0)
    torch.testing.assert_close(values.var(dim=0), torch.full((4,), 1 / 12), atol=0.003, rtol=0)
    correlation = torch.corrcoef(torch.cat((values, values.roll(1, dims=0)), dim=1).T) - torch.eye(8)
    assert correlation.abs().max() < 0.03
    other = keyed_uniforms(key(3, 2), torch.arange(50_000), 4)
    assert torch.corrcoef(torch.stack((values[:, 0], other[:, 0])))[0, 1].abs() < 0.03
