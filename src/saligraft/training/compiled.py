"""Training passes through torch.compile, the pass that yields saliency maps among them."""

from typing import cast

import torch
from torch import nn

from saligraft.saliency.base import SaliencySource
from saligraft.saliency.sources import FeatureMap


def compile_passes(model: nn.Module, source: SaliencySource | None, backend: str = "inductor") -> nn.Module:
    """The model as a training step is to call it; a source that maps come from in the training pass is compiled too.

    `model` itself, bare or in DDP, stays uncompiled, for tests and for saving under its own names. Sources other than
    the feature map run the network by hooks that compiled code does not keep, and so uncompiled.
    """
    if isinstance(source, FeatureMap):
        # Under DDP both passes share the code of the network's own frames: with the hook and without are to be two.
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        source.capture.compile(backend=backend, dynamic=False)
    # A graph for each image size: one for any size would round otherwise in a run that is resumed in a later phase.
    return cast(nn.Module, torch.compile(model, backend=backend, dynamic=False))
