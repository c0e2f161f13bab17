"""A LightningModule trains with a step as it is; the callback saves the step and switches mixing off."""

from pathlib import Path

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import saligraft as sg
from saligraft.integrations.lightning import GraftingCallback

pytestmark = pytest.mark.usefixtures("leave_no_process_group")


class Classifier(L.LightningModule):
    def __init__(self, **options: object) -> None:
        super().__init__()
        body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.model = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        self.step = sg.GraftingStep(self.model, sg.SaliencyGrafting(), **options)
        self.mixed: list[bool] = []
        self.dtypes: set[torch.dtype] = set()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        out = self.step(*batch)
        self.mixed.append(out.mixed is not None)
        self.dtypes.add(out.logits.dtype)
        self.in_ddp = isinstance(self.trainer.strategy.model, DistributedDataParallel)
        return out.loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    module: Classifier, folder: Path, *callbacks: L.Callback, checkpoint: Path | None = None, **options
) -> L.Trainer:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.rand(8, 3, 12, 12), torch.arange(8) % 3), batch_size=4)
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer


def test_step_needs_no_adapter_and_casts_as_the_trainer_does(tmp_path: Path) -> None:
    module = Classifier()
    before = [weight.detach().clone() for weight in module.parameters()]
    fit(module, tmp_path, max_epochs=1, precision="bf16-mixed", accumulate_grad_batches=2)
    assert module.mixed == [True, True]
    assert module.dtypes == {torch.bfloat16}
    assert all(not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
    assert not any(name.startswith("step") for name in module.state_dict())


def test_ddp_strategy_wraps_the_module_around_both_passes(tmp_path: Path) -> None:
    module = Classifier()
    fit(module, tmp_path, max_epochs=1, strategy="ddp", devices=1)
    assert module.in_ddp
    assert module.mixed == [True, True]
    assert all(weight.grad is not None for weight in module.parameters())


def test_checkpoint_resumes_the_step(tmp_path: Path) -> None:
    first = Classifier(warmup_steps=3, generator=torch.Generator().manual_seed(1))
    trainer = fit(first, tmp_path, GraftingCallback(), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    second = Classifier(warmup_steps=3, generator=torch.Generator().manual_seed(2))
    fit(second, tmp_path, GraftingCallback(), max_epochs=2, checkpoint=tmp_path / "one.ckpt")
    assert second.mixed == [False, True]  # 2 of 3 steps of warm-up were in the first run
    fit(first, tmp_path, max_epochs=2, checkpoint=tmp_path / "one.ckpt")
    assert torch.equal(first.step.generator.get_state(), second.step.generator.get_state())


@pytest.mark.parametrize("hook", ["setup", "configure_model", "on_fit_start"])
def test_a_step_made_in_a_hook_of_the_module_is_found_and_resumed(hook: str, tmp_path: Path) -> None:
    class Late(Classifier):
        def __init__(self) -> None:
            super().__init__()
            del self.step

        def make(self, stage: str | None = None) -> None:  # noqa: ARG002
            self.step = sg.GraftingStep(self.model, sg.SaliencyGrafting(), warmup_steps=3)

    setattr(Late, hook, Late.make)
    trainer = fit(Late(), tmp_path, GraftingCallback(), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    second = Late()
    fit(second, tmp_path, GraftingCallback(), max_epochs=2, checkpoint=tmp_path / "one.ckpt")
    assert second.mixed == [False, True]


def test_a_module_without_a_step_is_validated(tmp_path: Path) -> None:
    class Plain(L.LightningModule):
        def validation_step(self, *_: object) -> None: ...

    callback, options = GraftingCallback(), {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", callbacks=[callback], default_root_dir=tmp_path, logger=False, **options)
    trainer.validate(Plain(), DataLoader(TensorDataset(torch.rand(2, 3))), verbose=False)
    callback.load_state_dict({"steps_taken": 3})
    assert callback.state_dict() == {"steps_taken": 3}


def test_mixing_stops_at_the_epoch(tmp_path: Path) -> None:
    module = Classifier()
    fit(module, tmp_path, GraftingCallback(off_epoch=1), max_epochs=2)
    assert module.mixed == [True, True, False, False]


def test_module_without_a_step_is_an_error(tmp_path: Path) -> None:
    module = Classifier()
    del module.step
    with pytest.raises(ValueError, match="one step of saligraft as an attribute, got none"):
        fit(module, tmp_path, GraftingCallback(), max_epochs=1)
    with pytest.raises(ValueError, match="off_epoch must be"):
        GraftingCallback(off_epoch=-1)
