"""Your own pictures, augmented as you like; maps are remembered per picture, so that grafting costs no extra pass.

`python examples/own_data_set.py [EPOCHS]`, about 15 s. Needs: pip install ".[lab]"
"""

import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import saligraft as sg
from saligraft.data import load
from saligraft.networks import build_network


class Pictures(Dataset):
    """FOLDER/CLASS/NAME.png; yields image, class and the picture's number, by which its map is remembered."""

    transform = v2.Compose([v2.ToImage(), v2.ColorJitter(0.4, 0.4, 0.4), v2.ToDtype(torch.float32, scale=True)])

    def __init__(self, folder):
        self.files = sorted(folder.glob("*/*.png"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        return self.transform(Image.open(file)), self.classes.index(file.parent.name), index


epochs = int(sys.argv[1]) if sys.argv[1:] else 15
with tempfile.TemporaryDirectory() as folder:
    shapes = load("shapes", per_class=30)  # in place of your pictures
    for number, (image, label) in enumerate(zip(shapes.images, shapes.labels, strict=True)):
        file = Path(folder, shapes.classes[label], f"{number}.png")
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)

    torch.manual_seed(0)
    pictures = Pictures(Path(folder))
    loader = DataLoader(pictures, batch_size=30, shuffle=True)
    model = build_network("wrn-10-1", num_classes=len(pictures.classes), stem_stride=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    method = sg.SaliencyGrafting(grids=(4,))
    # One plain epoch fills the memory. Crops and flips would have to be passed too: see `geometry` in help(step).
    step = sg.GraftingStep(model, method, passes="remembered", warmup_steps=len(loader))
    for epoch in range(epochs):
        losses = []
        for images, labels, index in loader:
            out = step(images, labels, index=index)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            losses.append(out.loss.item())
        mixed = "plain" if out.mixed is None else f"grafted, mean weight {out.mixed.source_weight.mean():.2f}"
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.2f}, {mixed}")
