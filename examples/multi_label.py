"""Several classes per image: multi-hot labels and binary cross-entropy.

`python examples/multi_label.py [EPOCHS]`, about 30 s. Needs: pip install ".[lab]"
"""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import saligraft as sg
from saligraft.data import load
from saligraft.networks import build_network


def pairs(split, per_class, seed):
    """Two shapes side by side, and a row with a 1 for each of their classes."""
    data = load("shapes", split=split, per_class=per_class)
    images, labels = torch.stack([image for image, _ in data]), data.labels
    other = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    present = torch.nn.functional.one_hot(labels, 10) | torch.nn.functional.one_hot(labels[other], 10)
    return TensorDataset(torch.cat([images, images[other]], dim=3), present.float())


epochs = int(sys.argv[1]) if sys.argv[1:] else 15
torch.manual_seed(0)
loader = DataLoader(pairs("train", per_class=50, seed=0), batch_size=50, shuffle=True)
model = build_network("wrn-10-1", num_classes=10, stem_stride=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * len(loader))
step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4,)), criterion=sg.mixed_binary_cross_entropy)

for epoch in range(epochs):
    for images, labels in loader:
        loss = step(images, labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

model.eval()
images, present = pairs("test", per_class=30, seed=1).tensors
with torch.inference_mode():
    top = model(images).topk(2).indices
hits = present.gather(1, top).sum() / present.sum()
print(f"{100 * hits:.0f} % of the classes present are among the two highest scores; chance is 20 %")
