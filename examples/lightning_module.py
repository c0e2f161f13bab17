"""Lightning: a LightningModule with four lines for grafting, on any strategy and precision.

`python examples/lightning_module.py [EPOCHS [DEVICES]]`, about 15 s. Needs: pip install ".[lab,lightning]"
"""

import sys

import lightning as L
import torch
from torch.utils.data import DataLoader

import saligraft as sg
from saligraft.data import load
from saligraft.integrations.lightning import GraftingCallback
from saligraft.networks import build_network


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = build_network("wrn-10-1", num_classes=10, stem_stride=2)
        self.step = sg.GraftingStep(self.model, sg.SaliencyGrafting(grids=(4,)))

    def training_step(self, batch, _):
        return self.step(*batch).loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main(epochs=10, devices=1):
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp_spawn" if devices > 1 else "auto",
        precision="bf16-mixed",
        max_epochs=epochs,
        callbacks=[GraftingCallback(off_epoch=max(1, epochs - 2))],  # saves the step; plain training at the end
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    train, test = load("shapes", per_class=50), load("shapes", split="test", per_class=30)
    trainer.fit(Classifier(), DataLoader(train, batch_size=50, shuffle=True), DataLoader(test, batch_size=100))
    print(f"{100 * trainer.callback_metrics['accuracy']:.0f} % of the test images are classified correctly")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
