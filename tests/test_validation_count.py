"""A training step makes few calls of validating functions: arguments are validated at the public boundary alone."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import saligraft as sg
from saligraft import checks

MOST_CALLS = 40
PACKAGE = str(Path(checks.__file__).parent)


def test_a_grafting_step_makes_few_validating_calls() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    step = sg.GraftingStep(model, sg.SaliencyGrafting())
    images, labels = torch.rand(4, 3, 16, 16), torch.arange(4)
    step(images, labels)  # the first step looks for the layer
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and (file == checks.__file__ or (file.startswith(PACKAGE) and "check" in name)):
            calls[name] += 1

    sys.setprofile(count)
    try:
        step(images, labels)
    finally:
        sys.setprofile(None)
    for name in ("at_least_float32", "in_full_precision", "_autocasts", "usable_maps", "frame_size", "<listcomp>"):
        del calls[name]  # they compute, and validate nothing
    assert 0 < calls.total() <= MOST_CALLS, calls
