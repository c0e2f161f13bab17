"""Saliency Grafting under Lightning's `Trainer`: the step's state in checkpoints, and mixing off from an epoch on.

A LightningModule needs no adapter: `docs/guides/lightning.md` has the four lines.
"""

from typing import Any

from saligraft import checks
from saligraft.import_path import install_command
from saligraft.step import TrainingStep

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"this integration needs lightning: {install_command('lightning')}") from error

__all__ = ["GraftingCallback"]


class GraftingCallback(Callback):
    """Saves the training step of a LightningModule in every checkpoint, and can switch its mixing off late.

    The step is the module's attribute that is a `GraftingStep` or another step of saligraft. Lightning itself saves
    modules alone, so without this a resumed run repeats the warm-up and loses remembered maps.

    Args:
        off_epoch: Epoch from which on nothing is mixed, counted from 0; None mixes to the end.

    Example:
        >>> GraftingCallback(off_epoch=180).off_epoch
        180
    """

    def __init__(self, off_epoch: int | None = None) -> None:
        if off_epoch is not None:
            checks.whole_number("off_epoch", off_epoch, least=0)
        self.off_epoch = off_epoch
        self._step: TrainingStep | None = None
        self._loaded: dict[str, Any] = {}  # of a checkpoint, until the step is there

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Find the step: a module may make it in `configure_model`, `setup` or `on_fit_start`."""
        steps = {name: value for name, value in vars(pl_module).items() if isinstance(value, TrainingStep)}
        if len(steps) != 1:
            names = ", ".join(steps) or "none"
            raise ValueError(f"{type(pl_module).__name__} must have one step of saligraft as an attribute, got {names}")
        (self._step,) = steps.values()
        if self._loaded:
            self._step.load_state_dict(self._loaded)
            self._loaded = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        if self._step is not None and self.off_epoch is not None:
            self._step.enabled = trainer.current_epoch < self.off_epoch

    def state_dict(self) -> dict[str, Any]:
        return self._loaded if self._loaded or self._step is None else self._step.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict
