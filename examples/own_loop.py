"""Your own training loop: two lines to add. `python examples/own_loop.py [EPOCHS]`, about 15 s."""

import sys

import torch
from torch.utils.data import DataLoader

import saligraft as sg
from saligraft.data import load
from saligraft.networks import build_network

epochs = int(sys.argv[1]) if sys.argv[1:] else 15
torch.manual_seed(0)
loader = DataLoader(load("shapes", per_class=50), batch_size=50, shuffle=True)
model = build_network("wrn-10-1", num_classes=10, stem_stride=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * len(loader))
step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4,)))

for epoch in range(epochs):
    for images, labels in loader:
        loss = step(images, labels).loss  # originals and grafts, two forward passes
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
