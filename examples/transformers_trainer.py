"""Hugging Face Transformers: a Trainer that grafts in training and leaves evaluation alone.

`python examples/transformers_trainer.py [EPOCHS]`, about 30 s. Needs: pip install ".[lab,transformers]"
"""

import sys
import tempfile

import torch
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments, set_seed

import saligraft as sg
from saligraft.data import load
from saligraft.integrations.transformers import GraftingTrainer


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


set_seed(0)
sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64], "depths": [1, 1, 1], "layer_type": "basic"}
model = ResNetForImageClassification(ResNetConfig(**sizes, num_labels=10))
with tempfile.TemporaryDirectory() as folder:
    trainer = GraftingTrainer(
        method=sg.SaliencyGrafting(grids=(4,)),  # the one line that Trainer does not have
        model=model,
        args=TrainingArguments(
            folder,
            num_train_epochs=float(sys.argv[1]) if sys.argv[1:] else 10,
            per_device_train_batch_size=25,
            per_device_eval_batch_size=100,
            learning_rate=0.01,
            save_strategy="no",
            logging_steps=40,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,  # the collate function, not the data set, names the columns
        ),
        data_collator=collate,
        train_dataset=load("shapes", per_class=50),
        eval_dataset=load("shapes", split="test", per_class=30),
        compute_metrics=accuracy,
    )
    trainer.train()
    print(f"{100 * trainer.evaluate()['eval_accuracy']:.0f} % of the test images are classified correctly")
