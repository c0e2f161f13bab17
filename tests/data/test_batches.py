"""What every loader shares."""

import torch

from saligraft.data.batches import normalisation


def test_normalisation_takes_bytes_to_mean_zero_and_deviation_one() -> None:
    mean, std = (0.2, 0.4, 0.6), (0.1, 0.2, 0.5)
    scale, shift = normalisation(mean, std)
    images = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
    expected = (images.double() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close((images.float() * scale + shift).double(), expected, atol=1e-5, rtol=0)
