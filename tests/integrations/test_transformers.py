"""The Trainer grafts in training, leaves evaluation alone, and keeps its own options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import saligraft as sg
from saligraft.integrations.transformers import GraftingTrainer

K = 4
SIZES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": K}


def resnet(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(embedding_size=8, **SIZES, **options))


def convnext() -> nn.Module:
    return ConvNextForImageClassification(ConvNextConfig(patch_size=2, num_stages=2, **SIZES))


def vit() -> nn.Module:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes, num_labels=K))


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.images = torch.rand(len(labels), 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


INDICES = Samples(torch.arange(8) % K)
ROWS = Samples(torch.eye(K).repeat(2, 1))


class Watching(GraftingTrainer):
    """Notes which training batches were mixed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mixed: list[bool] = []

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        result = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        if model.training:
            self.mixed.append(not self._step.is_plain)
        return result


def trainer_of(model: nn.Module, folder: Path, data: Samples = INDICES, kind: Any = Watching, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("method", "step_options", "compute_metrics") if name in options}
    args = TrainingArguments(
        str(folder),
        **{"max_steps": 2, "per_device_train_batch_size": 4, "save_strategy": "no", **options},
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return kind(model=model, args=args, train_dataset=data, eval_dataset=data, **own)


@pytest.mark.parametrize("model", [resnet, convnext, vit])
def test_models_train_on_originals_and_grafts(model: Any, tmp_path: Path) -> None:
    network = model()
    before = [weight.detach().clone() for weight in network.parameters()]
    trainer = trainer_of(network, tmp_path, bf16=model is vit)
    trainer.train()
    assert trainer.mixed == [True, True]
    assert any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))


def test_compiled_models_train(tmp_path: Path) -> None:
    trainer = trainer_of(resnet(), tmp_path, torch_compile=True, torch_compile_backend="aot_eager")
    trainer.train()
    assert trainer.mixed == [True, True]
    assert "_orig_mod" in trainer._step.model._modules
    assert 0 < trainer.evaluate()["eval_loss"] < 10


def test_a_step_that_compiles_is_built_once(tmp_path: Path) -> None:
    steps = set()

    class Counting(Watching):
        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            loss = super().training_step(*args, **kwargs)
            steps.add(self._step)
            return loss

    trainer_of(resnet(), tmp_path, kind=Counting, max_steps=3, step_options={"compile": "eager"}).train()
    [step] = steps
    assert step.steps_taken == 3


def test_evaluation_is_that_of_the_trainer(tmp_path: Path) -> None:
    seen = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append((prediction.predictions, prediction.label_ids))
        return {}

    model = resnet()
    ours = trainer_of(model, tmp_path, compute_metrics=metrics).evaluate()
    theirs = trainer_of(model, tmp_path, kind=Trainer, compute_metrics=metrics).evaluate()
    assert ours["eval_loss"] == theirs["eval_loss"]
    assert all(np.array_equal(got, expected) for got, expected in zip(*seen, strict=True))
    assert np.array_equal(seen[0][1], INDICES.labels.numpy())


def test_accumulated_batches_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Two batches of 4 in one update move the weights as one batch of 8 does, where nothing is mixed."""
    weights = []
    for batch, accumulated in ((8, 1), (4, 2)):
        torch.manual_seed(0)
        model = vit()
        options = {"gradient_accumulation_steps": accumulated, "per_device_train_batch_size": batch}
        trainer = trainer_of(model, tmp_path, max_steps=1, optim="sgd", learning_rate=0.1, **options)
        trainer.grafting_enabled = False
        trainer.train()
        weights.append(model.classifier.weight.detach().clone())
    torch.testing.assert_close(*weights)


def test_plain_loss_is_that_of_the_trainer(tmp_path: Path) -> None:
    """With mixing off, the loss of a batch is what the Trainer itself computes, smoothing included."""
    model, batch = resnet(), {"pixel_values": INDICES.images, "labels": INDICES.labels}
    ours = trainer_of(model, tmp_path, kind=GraftingTrainer, label_smoothing_factor=0.2)
    theirs = trainer_of(model, tmp_path, kind=Trainer, label_smoothing_factor=0.2)
    ours.grafting_enabled = False
    model.train()
    loss, outputs = ours.compute_loss(model, dict(batch), return_outputs=True)
    torch.testing.assert_close(loss, theirs.compute_loss(model, dict(batch)))
    assert outputs.logits.shape == (8, K)


def test_multi_label_models_train_by_binary_cross_entropy(tmp_path: Path) -> None:
    model = resnet(problem_type="multi_label_classification")
    trainer = trainer_of(model, tmp_path, data=ROWS, kind=GraftingTrainer)
    trainer.grafting_enabled = False
    model.train()
    batch = {"pixel_values": ROWS.images, "labels": ROWS.labels}
    loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
    torch.testing.assert_close(loss, nn.functional.binary_cross_entropy_with_logits(outputs.logits, ROWS.labels))


@pytest.mark.parametrize("problem", ["regression", None])  # None, and one label, is regression in Transformers
@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_regression_models_train_by_the_squared_error(problem: str | None, shape: Any, tmp_path: Path) -> None:
    data = Samples(torch.randn(shape))
    sizes = {**SIZES, "num_labels": 1}
    model = ResNetForImageClassification(ResNetConfig(embedding_size=8, **sizes, problem_type=problem))
    trainer = trainer_of(model, tmp_path, data=data, kind=GraftingTrainer)
    trainer.train()
    trainer.grafting_enabled = False
    model.train()
    loss, outputs = trainer.compute_loss(
        model, {"pixel_values": data.images, "labels": data.labels}, return_outputs=True
    )
    torch.testing.assert_close(loss, nn.functional.mse_loss(outputs.logits[:, 0], data.labels.flatten()))


def test_resumed_training_continues_the_warm_up(tmp_path: Path) -> None:
    options = {"step_options": {"warmup_steps": 3}, "save_strategy": "steps", "save_steps": 2}
    trainer_of(resnet(), tmp_path, **options).train()
    resumed = trainer_of(resnet(), tmp_path, max_steps=4, **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.mixed == [False, True]


def test_a_callback_switches_mixing_off(tmp_path: Path) -> None:
    trainer = trainer_of(resnet(), tmp_path, max_steps=3)

    class Off(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            trainer.grafting_enabled = state.global_step < 2

    trainer.add_callback(Off())
    trainer.train()
    assert trainer.mixed == [True, True, False]


def test_wrong_batches_and_options_are_named(tmp_path: Path) -> None:
    model = resnet()
    trainer = trainer_of(model, tmp_path)
    model.train()
    with pytest.raises(ValueError, match="must hold 'pixel_values' and 'labels', the images and their labels, got"):
        trainer.compute_loss(model, {"pixel_values": INDICES.images, "mask": None, "labels": INDICES.labels})
    with pytest.raises(ValueError, match="problem_type must be set"):
        trainer.compute_loss(model, {"pixel_values": ROWS.images, "labels": ROWS.labels})
    with pytest.raises(ValueError, match="compute_loss_func must be None"):
        GraftingTrainer(model=model, compute_loss_func=lambda *_: None)
    with pytest.raises(ValueError, match=r"step_options must be one of 'method', .*; got 'layerr'"):
        GraftingTrainer(model=model, step_options={"layerr": 1})
    smoothed = trainer_of(model, tmp_path, label_smoothing_factor=0.1)
    for model.config.problem_type in ("regression", "multi_label_classification"):
        with pytest.raises(ValueError, match=f"label_smoothing_factor must be 0 for {model.config.problem_type}, got"):
            smoothed.compute_loss(model, {"pixel_values": ROWS.images, "labels": ROWS.labels})
    model.config.problem_type = "ranking"
    with pytest.raises(ValueError, match="problem_type must be one of"):
        trainer.compute_loss(model, {"pixel_values": INDICES.images, "labels": INDICES.labels})


def test_it_mixes_into_a_trainer_of_ones_own(tmp_path: Path) -> None:
    class Own(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.evaluated = True
            return super().compute_loss(*args, **kwargs)

    class Mine(GraftingTrainer, Own):
        pass

    with pytest.warns(UserWarning, match="compute_loss of Own is used in evaluation alone"):
        trainer = trainer_of(resnet(), tmp_path, kind=Mine, method=sg.CutMix())
    trainer.train()
    assert not hasattr(trainer, "evaluated")
    trainer.evaluate()
    assert trainer.evaluated


def test_a_mixin_in_the_wrong_order_warns(tmp_path: Path) -> None:
    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    class Wrong(Own, GraftingTrainer):
        pass

    with pytest.warns(UserWarning, match=r"write class Wrong\(GraftingTrainer, Own\)"):
        trainer_of(resnet(), tmp_path, kind=Wrong)


@pytest.mark.parametrize("model", [resnet, convnext])
def test_grad_cam_makes_a_pass_of_its_own(model: Any) -> None:
    step = sg.GraftingStep(model(), sg.SaliencyGrafting(), saliency_source="grad-cam", passes="mixed")
    out = step(INDICES.images, INDICES.labels)
    out.loss.backward()
    assert out.mixed.mask.any()


def test_checkpointed_layers_have_the_gradients_of_others() -> None:
    images, labels = INDICES.images, INDICES.labels
    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = vit().train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        step = sg.GraftingStep(model, sg.SaliencyGrafting(grids=(4,)), generator=torch.Generator().manual_seed(0))
        step(images, labels).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])


def test_a_pooled_vector_with_as_many_channels_as_a_grid_has_cells_is_no_map() -> None:
    sizes = {"image_size": 32, "embed_dim": 32, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    model = SwinForImageClassification(SwinConfig(**sizes, num_labels=K))  # tokens of 8 × 8, then 4 × 4; 64 channels
    capture = sg.SaliencyCapture(model)
    _, saliency = capture(torch.rand(2, 3, 32, 32))
    assert (capture.layer_name, tuple(saliency.shape)) == ("swin.encoder", (2, 4, 4))
