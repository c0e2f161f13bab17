"""What the benchmark times ours against: PuzzleMix as its authors compute it, and the usual way to feed CIFAR.

Kim, Choo & Song, ICML 2020: a loop over the batch that calls gco's alpha-beta swap, then dense plans (B, g², g²) and
matrix products, as in the authors' published code.
"""

from importlib import import_module

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from saligraft.data import ImageData
from saligraft.methods.puzzlemix import MaskEnergy

TRANSPORT_COST = 0.8  # ξ


def swap_levels(energy: MaskEnergy) -> Tensor:
    """Run one alpha-beta swap per sample, on costs cut to whole numbers at the authors' scale.

    Args:
        energy: Energy from `mask_energy`.

    Returns:
        Levels (B, g, g).
    """
    gco = import_module("gco")
    unary, down, across = (part.double().numpy() for part in energy)
    levels, grid = unary.shape[1:3]
    scale = 1000 * grid**2
    level = np.arange(levels)
    pairwise = ((level[:, None] - level) ** 2 / (levels - 1) ** 2).astype(np.float32)
    solved = []
    for costs, below, beside in zip(unary, down, across, strict=True):
        rounded = np.ascontiguousarray((scale * costs.transpose(1, 2, 0)).astype(np.int32))
        edges = ((scale * below).astype(np.int32), (scale * beside).astype(np.int32))
        solved.append(gco.cut_grid_graph(rounded, pairwise, *edges, algorithm="swap").reshape(grid, grid))
    return torch.from_numpy(np.stack(solved)).long()


def dense_transport(images: Tensor, shares: Tensor, visible: Tensor) -> Tensor:
    """Plan all blocks against all places, resolved by rows and columns, and apply the plans as matrix products.

    Args:
        images: (B, C, H, W), H and W multiples of g.
        shares: (B, g, g).
        visible: bool (B, g, g).

    Returns:
        The images with their blocks moved.
    """
    batch, grid = shares.shape[:2]
    blocks = grid**2
    position = torch.cartesian_prod(torch.arange(grid), torch.arange(grid)).float()
    distance = (position[:, None] - position).square().sum(dim=2) / (grid - 1) ** 2
    cost = TRANSPORT_COST * distance - shares.reshape(batch, blocks, 1) * visible.float().reshape(batch, 1, blocks)
    for _ in range(grid):
        plan = torch.zeros_like(cost).scatter_(2, cost.min(dim=2).indices[:, :, None], 1)
        best = (plan * cost).min(dim=1).indices
        win = torch.zeros_like(cost).scatter_(1, best[:, None], 1) * plan
        cost = cost + (1 - win) * plan
    channels, side = images.shape[1], images.shape[2] // grid
    patches = images.reshape(batch, channels, grid, side, grid, side).permute(0, 1, 3, 5, 2, 4)
    patches = patches.reshape(batch, channels, side, side, blocks, 1)
    moved = win.transpose(1, 2)[:, None, None, None].matmul(patches)
    moved = moved.reshape(batch, channels, side, side, grid, grid).permute(0, 1, 4, 2, 5, 3)
    return moved.reshape(images.shape)


class PerImage(Dataset[tuple[Tensor, int]]):
    """Each image as a PIL image through torchvision's crop, flip, conversion and normalisation.

    Args:
        data: The split.
    """

    def __init__(self, data: ImageData) -> None:
        self._images = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in data.images]
        self._labels = data.labels.tolist()
        self._transform = transforms.Compose(
            [
                transforms.RandomCrop(data.image_shape[1:], padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(data.mean, data.std),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


def per_image_loader(data: ImageData, batch_size: int, workers: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """Build the loader: shuffled, whole batches, workers that stay from epoch to epoch.

    Args:
        data: The split.
        batch_size: Samples per batch.
        workers: Processes.
    """
    options = {"shuffle": True, "drop_last": True, "num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(PerImage(data), batch_size=batch_size, **options)  # type: ignore[arg-type]
