"""AugMix: convex blends of chains of operations, and the Jensen-Shannon divergence of three answers."""

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("torchvision", reason="AugMix's operations are torchvision's, an extra")

import saligraft as sg
from saligraft.methods import AugMix, augmix, jensen_shannon_loss
from saligraft.methods.augmix.operations import OPERATIONS


def pictures(size: int = 8) -> Tensor:
    return torch.rand(size, 3, 16, 20, generator=torch.Generator().manual_seed(0))


def entropy(rows: Tensor) -> Tensor:
    return -(rows * rows.clamp(min=1e-30).log()).sum(dim=1)


@given(seed=st.integers(0, 999), scale=st.floats(0.01, 20))
def test_divergence_is_the_entropy_of_the_mean_less_the_mean_entropy(seed: int, scale: float) -> None:
    logits = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(seed)) * scale
    shares = logits.double().softmax(dim=2)
    expected = (entropy(shares.mean(dim=0)) - sum(map(entropy, shares)) / 3).mean()
    loss = jensen_shannon_loss(*logits)
    torch.testing.assert_close(loss, expected.float(), atol=1e-5, rtol=1e-4)
    assert -1e-6 < float(loss) <= math.log(3) + 1e-6


def test_divergence_is_0_for_like_answers_and_finite_for_certain_ones() -> None:
    logits = torch.randn(4, 5)
    assert float(jensen_shannon_loss(logits, logits, logits).abs()) < 1e-6
    certain = [torch.eye(5)[[place] * 4].mul(1e4).requires_grad_() for place in (0, 1, 2)]
    loss = jensen_shannon_loss(*certain)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3), rel=1e-4)
    assert all(one.grad.isfinite().all() for one in certain)


def test_view_is_the_written_out_blend_of_its_chains() -> None:
    """The grouped, batched view against one image at a time, one operation at a time."""
    images = pictures()
    method = AugMix(width=2, depth=3, severity=8)
    drawn = method.draw(images, generator=torch.Generator().manual_seed(1))
    view = augmix(images, drawn)
    for sample in range(len(images)):
        mixture = torch.zeros(3, 16, 20)
        for chain in range(2):
            image = images[sample : sample + 1]
            for groups in drawn.rounds:
                for group in groups:
                    at = group.places == 2 * sample + chain
                    if at.any():
                        image = OPERATIONS[group.operation](image, group.level[at], group.sign[at])
            mixture += drawn.chain_weight[sample, chain] * image[0]
        expected = (1 - drawn.blend[sample]) * images[sample] + drawn.blend[sample] * mixture
        torch.testing.assert_close(view[sample], expected, atol=1e-5, rtol=1e-5)


def test_draws_are_those_of_the_authors(generator: torch.Generator) -> None:
    images = torch.rand(3000, 3, 1, 1)
    drawn = AugMix().draw(images, generator=generator)
    lengths = [sum(len(group.places) for group in groups) / 9000 for groups in drawn.rounds]
    assert lengths == pytest.approx([1, 2 / 3, 1 / 3], abs=0.02)  # 1 to 3 operations, uniformly
    for group in drawn.rounds[0]:
        assert len(group.places) / 9000 == pytest.approx(1 / len(OPERATIONS), abs=0.015)
        assert 0.1 <= float(group.level.min()) < 0.2
        assert 2.9 < float(group.level.max()) <= 3.0
    torch.testing.assert_close(drawn.chain_weight.sum(dim=1), torch.ones(3000))
    assert float(drawn.chain_weight.std()) == pytest.approx((1 / 18) ** 0.5, abs=0.01)  # of Dirichlet(1, 1, 1)
    assert float(drawn.blend.std()) == pytest.approx((1 / 12) ** 0.5, abs=0.01)  # of Beta(1, 1)


def test_per_batch_and_probability() -> None:
    images = pictures(1).repeat(6, 1, 1, 1)
    view = augmix(images, AugMix(per="batch").draw(images, generator=torch.Generator().manual_seed(3)))
    assert len(view.unique(dim=0)) == 1
    assert len(augmix(images, AugMix().draw(images)).unique(dim=0)) == 6
    assert torch.equal(augmix(images, AugMix(probability=0).draw(images)), images)


@pytest.mark.parametrize("normalized", [False, True])
def test_views_are_normalised_after_the_augmentation(normalized: bool) -> None:
    images = pictures()
    mean, std = (0.1, 0.5, 0.3), (0.2, 0.5, 0.4)
    scale, shift = (torch.tensor(values)[:, None, None] for values in (std, mean))
    given = (images - shift) / scale if normalized else images
    method = AugMix(mean=mean, std=std, normalized=normalized)
    clean, first, second = method.views(given, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(clean, (images - shift) / scale)
    stream = torch.Generator().manual_seed(2)
    for view in (first, second):
        augmented = augmix(images, AugMix().draw(images, generator=stream))
        torch.testing.assert_close(view * scale + shift, augmented, atol=0.05, rtol=0)  # equalize may tip by a level
        assert float(augmented.min()) >= 0
        assert float(augmented.max()) <= 1
    assert not torch.equal(first, second)


def test_loss_is_that_of_the_clean_view_and_the_consistency() -> None:
    images, labels = pictures(), torch.arange(8) % 4
    logits = torch.randn(3, 8, 4)
    loss = AugMix().loss(logits, sg.MixedBatch.unmixed(images, labels), sg.mixed_cross_entropy)
    expected = nn.functional.cross_entropy(logits[0], labels) + 12 * jensen_shannon_loss(*logits)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"width": 0}, ValueError, "width must be >= 1, got 0"),
        ({"depth": 0}, ValueError, "depth must be >= 1, got 0"),
        ({"severity": 11}, ValueError, r"severity must be in \[0.1, 10\], got 11"),
        ({"consistency": -1}, ValueError, "consistency must be a finite number >= 0, got -1"),
        ({"std": (1, 1)}, ValueError, r"std must have 3 entries \(red, green, blue\), got 2"),
        ({"std": (1, 1, 0)}, ValueError, "each of std must be a finite number > 0, got 0"),
    ],
)
def test_refuses_bad_parameters(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AugMix(**change)


def test_names_the_extra_where_torchvision_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2", None)
    with pytest.raises(ImportError, match=r'AugMix needs torchvision .*: pip install "saligraft\[lab\]"'):
        OPERATIONS["equalize"](pictures(), torch.ones(8), torch.ones(8))


@pytest.mark.parametrize("alpha", [1e-320, 1e-300, 1e-3, 0.099])
def test_a_tiny_alpha_gives_whole_weights(alpha: float, generator: torch.Generator) -> None:
    drawn = AugMix(alpha=alpha).draw(torch.rand(400, 3, 8, 8), generator=generator)
    torch.testing.assert_close(drawn.chain_weight.sum(dim=1), torch.ones(400))
    # Towards 0 all weight falls on one chain, each as often, and the blend is one or the other.
    assert drawn.chain_weight.mean(dim=0).tolist() == pytest.approx([1 / 3] * 3, abs=0.08)
    assert float(drawn.blend.mean()) == pytest.approx(0.5, abs=0.08)
