"""torchvision: methods that need no network mix in the collate function, also beside torchvision's own in RandomChoice.

`python examples/torchvision_collate.py [EPOCHS]`, about 15 s. Needs: pip install ".[lab]"
"""

import sys

import torch
from torch.utils.data import DataLoader, default_collate
from torchvision.transforms import v2

import saligraft as sg
from saligraft.data import load
from saligraft.networks import build_network

# Saliency Grafting cannot run here: its maps come from the network in training.
mix = v2.RandomChoice([sg.CutMix().as_transform(num_classes=10), v2.MixUp(num_classes=10)])


def collate(samples):
    return mix(*default_collate(samples))  # images (B, C, H, W) and targets (B, 10)


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if sys.argv[1:] else 15
    torch.manual_seed(0)
    loader = DataLoader(load("shapes", per_class=50), batch_size=50, shuffle=True, collate_fn=collate, num_workers=1)
    model = build_network("wrn-10-1", num_classes=10, stem_stride=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * len(loader))
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

    for epoch in range(epochs):
        for images, targets in loader:
            loss = criterion(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.2f}")

    model.eval()
    with torch.inference_mode():
        images, labels = next(iter(DataLoader(load("shapes", split="test", per_class=30), batch_size=300)))
        correct = model(images).argmax(1) == labels
    print(f"{100 * correct.float().mean():.0f} % of the test images are classified correctly; chance is 10 %")
