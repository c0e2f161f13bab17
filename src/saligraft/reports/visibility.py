"""How much of the objects a mixed image really shows, where their masks are known: the label that would be true.

Shapes: B batch, H W pixels.
"""

from typing import NamedTuple

from torch import Tensor

from saligraft.batch import MixedBatch
from saligraft.grafting import spread


class Visible(NamedTuple):
    """How much of the two objects of a mixed image can be seen.

    Args:
        source: v_i, (B,) in [0,1].
        destination: v_j, (B,) in [0,1].
    """

    source: Tensor
    destination: Tensor

    @property
    def weight(self) -> Tensor:
        """The true weight of the source's label, (B,); NaN where nothing of either object is visible."""
        return self.source / (self.source + self.destination)


def visible_shares(objects: Tensor, mixed: MixedBatch) -> Visible:
    """Measure which share of each object a mixed image shows. Pure.

    Args:
        objects: True on the object of each image of the batch, (B,H,W).
        mixed: Batch mixed by a method that leaves pixels in place.

    Example:
        >>> from saligraft import MixedBatch
        >>> objects = torch.tensor([[[True, True, False, False]], [[False, False, True, True]]])
        >>> partner, mask = torch.tensor([1, 0]), torch.tensor([[[True, False, True, False]]] * 2)
        >>> labels, images = torch.tensor([0, 1]), torch.zeros(2, 3, 1, 4)
        >>> mixed = MixedBatch(images, labels, labels[partner], torch.ones(2), mask, partner)
        >>> visible_shares(objects, mixed)
        Visible(source=tensor([0.5000, 0.5000]), destination=tensor([0.5000, 0.5000]))
    """
    objects = objects.float()
    shown = spread(mixed.mask, *objects.shape[1:]).float()

    def share(object_pixels: Tensor, visible: Tensor) -> Tensor:
        total = object_pixels.sum(dim=(1, 2))
        return (object_pixels * visible).sum(dim=(1, 2)) / total.clamp(min=1)

    return Visible(share(objects, shown), share(objects[mixed.partner], 1 - shown))
