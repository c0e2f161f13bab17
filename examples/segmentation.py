"""Segmentation: graft the images, and carry the masks along pixel by pixel.

`python examples/segmentation.py [EPOCHS]`, about 20 s. Needs: pip install ".[lab]" (for the data alone)
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import saligraft as sg
from saligraft.data import load


def masked_shapes(split, per_class):
    """Images, classes, and pixel labels (N, 32, 32): 1 on the object, 0 elsewhere."""
    data = load("shapes", split=split, per_class=per_class)
    return TensorDataset(torch.stack([image for image, _ in data]), data.labels, data.masks.long())


class Segmenter(nn.Module):
    """An encoder to 8 x 8 cells and a decoder back to pixels; the encoder's features give the saliency."""

    def __init__(self):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.coarse = nn.Sequential(nn.Conv2d(16, 32, 4, stride=4), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Sequential(nn.Conv2d(48, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 1))

    def forward(self, images):
        fine = self.fine(images)
        coarse = self.coarse(fine)
        return self.head(torch.cat([fine, F.interpolate(coarse, scale_factor=4)], dim=1)), coarse


epochs = int(sys.argv[1]) if sys.argv[1:] else 6
torch.manual_seed(0)
loader = DataLoader(masked_shapes("train", per_class=50), batch_size=50, shuffle=True)
model, method = Segmenter(), sg.SaliencyGrafting(grids=(4, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(epochs):
    for images, classes, masks in loader:
        logits, features = model(images)
        mixed = method(images, classes, sg.feature_saliency(features))
        loss = F.cross_entropy(logits, masks) + F.cross_entropy(model(mixed.images)[0], mixed.carry(masks))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item() / 2:.3f}")

model.eval()
images, _, masks = masked_shapes("test", per_class=30).tensors
with torch.inference_mode():
    found = model(images)[0].argmax(1).bool()
overlap = (found & masks.bool()).sum() / (found | masks.bool()).sum()
print(f"intersection over union of found and true object pixels: {100 * overlap:.0f} %")
