"""The usual way to feed CIFAR: a transform per image in worker processes; what our loader is timed against."""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from saligraft.data import ImageData


class PerImage(Dataset[tuple[Tensor, int]]):
    """Each image as a PIL image through torchvision's crop, flip, conversion and normalisation.

    Args:
        data: The split.
    """

    def __init__(self, data: ImageData) -> None:
        from PIL import Image

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


def per_image_loader(data: ImageData, batch_size: int, workers: int) -> "DataLoader[tuple[Tensor, Tensor]]":
    """Build the loader: shuffled, whole batches, workers that stay from epoch to epoch.

    Args:
        data: The split.
        batch_size: Samples per batch.
        workers: Processes.
    """
    options = {"shuffle": True, "drop_last": True, "num_workers": workers, "persistent_workers": workers > 0}
    return torch.utils.data.DataLoader(PerImage(data), batch_size=batch_size, **options)  # type: ignore[arg-type]
