"""What members of a kind share without any word of their own: draw before apply, checks, and who is of which kind."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from saligraft.methods import BatchMixer, FeatureMixer, ImageTransform, StepStrategy
from saligraft.methods.base import Applied


@dataclass(frozen=True, kw_only=True)
class Shift(ImageTransform[Tensor]):
    def draw(self, images: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        self._check_draw(images, generator)
        return torch.rand(len(images), generator=generator)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        return images + drawn[:, None, None, None]


def test_a_transform_is_called_as_draw_then_apply() -> None:
    images = torch.zeros(3, 1, 2, 2)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(4))
    shifted = Shift()(images, generator=torch.Generator().manual_seed(4))
    assert torch.equal(shifted, expected[:, None, None, None].expand(3, 1, 2, 2))
    with pytest.raises(ValueError, match=r"images must have shape \(B, C, H, W\)"):
        Shift()(images[0])
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None, got str"):
        Shift()(images, generator="seed")


@pytest.mark.parametrize("kind", [BatchMixer, ImageTransform, FeatureMixer, StepStrategy])
def test_a_kind_is_no_method_and_its_members_are_of_no_other(kind: type) -> None:
    assert issubclass(kind, Applied)
    with pytest.raises(TypeError, match="abstract"):
        kind()
    assert issubclass(Shift, kind) == (kind is ImageTransform)
