"""timm: one changed name in a loop like that of timm's train.py, with AMP, accumulation, EMA and a late end of mixing.

`python examples/timm_loop.py [EPOCHS]`, about 20 s. Needs: pip install ".[lab,timm]"
"""

import sys

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from torch.utils.data import DataLoader

from saligraft.data import load
from saligraft.integrations.timm import GraftingTask

epochs = int(sys.argv[1]) if sys.argv[1:] else 10
accumulated = 2
torch.manual_seed(0)
loader = DataLoader(load("shapes", per_class=50), batch_size=25, shuffle=True)
model = timm.create_model("test_resnet", num_classes=10)
task = GraftingTask(model, LabelSmoothingCrossEntropy(0.1))  # timm's own: ClassificationTask
optimizer = create_optimizer_v2(model, "adamw", lr=0.002)
task.setup_ema(decay=0.95)

for epoch in range(epochs):
    task.mixup_enabled = epoch < max(1, epochs - 2)  # --mixup-off-epoch
    task.get_trainable_module().train()
    for number, (images, labels) in enumerate(loader, start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = task(images, labels)["loss"]
        (loss / accumulated).backward()
        if number % accumulated == 0:
            optimizer.step()
            optimizer.zero_grad()
            task.update_ema()
    print(f"epoch {epoch + 1}: loss {loss.item():.2f}, mixing {task.mixup_enabled}")

images, labels = next(iter(DataLoader(load("shapes", split="test", per_class=30), batch_size=300)))
for name, network in (("weights", task.get_eval_model()), ("EMA", task.get_eval_model(ema=True))):
    network.eval()
    with torch.inference_mode():
        correct = network(images).argmax(1) == labels
    print(f"{name}: {100 * correct.float().mean():.0f} % of the test images are classified correctly")
