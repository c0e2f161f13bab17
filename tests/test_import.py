"""The core needs torch alone: it imports and mixes a batch while everything else of the extras is out of reach."""

import subprocess
import sys

import saligraft

SCRIPT = """
import sys

EXTRAS = {"torchvision", "accelerate", "pydantic", "typer", "rich", "matplotlib", "safetensors", "timm", "PIL"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refuse())
import torch
import saligraft as sg

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 2)
)
out = sg.GraftingStep(model, sg.SaliencyGrafting())(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 0, 1]))
out.loss.backward()
assert out.mixed is not None
print("fine")
"""


def test_core_works_without_any_extra() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fine", run.stderr


def test_public_names_are_there() -> None:
    for name in saligraft.__all__:
        assert getattr(saligraft, name) is not None
