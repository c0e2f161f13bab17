"""Reading shapes as maps: every patch size, prefix and image shape gives back the grid it was made from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.saliency.token_maps import ImageShape, Layout, channels_first, read_map, read_tokens, token_grid

sides = st.integers(3, 20)


@given(
    h=sides, w=sides, patch=st.sampled_from([4, 7, 14, 16]), remainder=st.tuples(st.integers(0, 3), st.integers(0, 3))
)
def test_token_grid_inverts_the_cutting_into_patches(h, w, patch, remainder):
    image = ImageShape(2, h * patch + remainder[0], w * patch + remainder[1])  # the remainder is cropped by the network
    found = token_grid(h * w, image)
    assert found is not None
    assert found[0] * found[1] == h * w
    if remainder == (0, 0):
        assert found == (h, w)


@given(h=sides, w=sides, prefix=st.integers(0, 12), sequence_first=st.booleans())
def test_a_grid_seen_before_the_tokens_decides_their_prefix(h, w, prefix, sequence_first):
    image = ImageShape(2, h * 16, w * 16)
    shape = (prefix + h * w, 2, 32) if sequence_first else (2, prefix + h * w, 32)
    reading = read_tokens(shape, image, grids_seen=[(h * 16, w * 16), (h, w)])
    assert reading == (Layout("nbc" if sequence_first else "bnc", prefix), (h, w))


@pytest.mark.parametrize(("tokens", "prefix"), [(196, 0), (197, 1), (198, 2), (201, 5)])
def test_without_a_seen_grid_square_images_give_square_grids(tokens, prefix):
    assert read_tokens((4, tokens, 192), ImageShape(4, 224, 224), []) == (Layout("bnc", prefix), (14, 14))


@pytest.mark.parametrize("shape", [(4, 1, 192), (4, 2, 192), (4, 99, 192), (3, 196, 192), (4, 768, 196), (4, 196)])
def test_what_is_no_grid_of_tokens_is_refused(shape):
    assert read_tokens(shape, ImageShape(4, 224, 224), []) is None


def test_tokens_may_be_merged_but_not_dropped():
    image = ImageShape(2, 64, 64)
    assert read_tokens((2, 64, 32), image, [(64, 64), (16, 16)]) == (Layout("bnc", 0), (8, 8))
    assert read_tokens((2, 10, 32), image, [(64, 64), (4, 4)]) is None  # a class token and 9 of 16 patches


@given(h=st.integers(2, 16), w=st.integers(2, 16), channels=st.integers(64, 512))
def test_channels_last_is_recognised_by_the_proportions(h, w, channels):
    image = ImageShape(3, h * 4, w * 4)  # at most 64 pixels a side: fewer than channels, so no other reading fits
    assert read_map((3, h, w, channels + 3), image, strict=True) == (Layout("bhwc"), (h, w))
    assert read_map((3, channels, h, w), image, strict=True) == (Layout("bchw"), (h, w))


def test_unequal_strides_are_channels_first_unless_strict():
    image, shape = ImageShape(2, 80, 100), (2, 32, 5, 50)  # a spectrogram network: frequency is strided, time is not
    assert read_map(shape, image, strict=False) == (Layout("bchw"), (5, 50))
    assert read_map(shape, image, strict=True) is None


@pytest.mark.parametrize("shape", [(2, 64, 1, 1), (2, 1, 1, 64), (3, 8, 4, 4), (2, 12, 196, 196), (2, 8, 1, 17)])
def test_pooled_maps_other_batches_and_attention_are_no_maps(shape):
    assert read_map(shape, ImageShape(2, 64, 64), strict=True) is None


def test_every_layout_leads_to_the_same_map():
    maps = torch.randn(2, 5, 3, 4)
    tokens = torch.cat([torch.full((2, 2, 5), 9.0), maps.flatten(2).transpose(1, 2)], dim=1)
    flat = maps.flatten(2).unsqueeze(-1)
    assert torch.equal(channels_first(maps, Layout("bchw")), maps)
    assert torch.equal(channels_first(maps.permute(0, 2, 3, 1), Layout("bhwc")), maps)
    assert torch.equal(channels_first(tokens, Layout("bnc", 2)), flat)
    assert torch.equal(channels_first(tokens.transpose(0, 1), Layout("nbc", 2)), flat)
