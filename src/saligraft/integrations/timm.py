"""Saliency Grafting in timm's training script: a task for the paper's two passes, and a drop-in for timm's `Mixup`.

`docs/guides/timm.md` has the lines to change in `train.py`.
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from saligraft import checks
from saligraft.batch import MixedBatch
from saligraft.draws import process_stream
from saligraft.hooks import unwrapped
from saligraft.import_path import install_command
from saligraft.losses import Criterion
from saligraft.methods.base import BatchMixer, check_batch
from saligraft.methods.saliency_grafting import SaliencyGrafting
from saligraft.saliency.sources import SourceLike
from saligraft.step import GraftingStep

try:
    from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
    from timm.task import ClassificationTask
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"this integration needs timm: {install_command('timm')}") from error

__all__ = ["GraftingMixup", "GraftingTask"]

# timm's losses by name, since some are of timm 1.0.31. These smooth class indices, but not dense targets:
SMOOTH_INDICES_ALONE = ("LabelSmoothingCrossEntropy", "BinaryCrossEntropy", "PolyCrossEntropy")
# And these have no use for the label of a graft:
UNFIT = {
    "JsdCrossEntropy": "compares augmented views",
    "AsymmetricLossSingleLabel": "takes class indices",
    "TwoWayLoss": "rounds targets to 0 or 1",
    "ZlprLoss": "rounds targets to 0 or 1",
}


class GraftingMixup:
    """A drop-in for `timm.data.Mixup`: ``images, targets = mix(images, labels)``.

    The maps come from one forward pass of the model without gradients or side effects, in its current mode: a step
    costs 2 forward and 1 backward passes. Unlike timm's `Mixup`, it leaves `images` unchanged and accepts batches of
    any size; call it where the batch is on the model's device, not in a collate function. After
    ``mix.mixup_enabled = False``, which timm's script sets at `--mixup-off-epoch`, it makes no pass and does not mix;
    the targets stay dense.

    Args:
        model: The network, before or after it is compiled or wrapped by DDP.
        method: A batch mixer; by default `SaliencyGrafting()`.
        label_smoothing: Share of the uniform distribution in each target.
        num_classes: K; by default the model's `num_classes`, which every timm model has.
        layer: Layer whose features give the saliency, as a module or its name; found automatically if None.
        saliency_source: Overrides the method's default source, as in `GraftingStep`.
        generator: CPU generator for all random draws; None uses torch's global generator.

    Example:
        >>> import timm
        >>> mix = GraftingMixup(timm.create_model("test_resnet", num_classes=10), label_smoothing=0.1)
        >>> images, targets = mix(torch.rand(4, 3, 64, 64), torch.arange(4))
        >>> images.shape, targets.shape, mix.mixup_enabled
        (torch.Size([4, 3, 64, 64]), torch.Size([4, 10]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        method: BatchMixer[Any] | None = None,
        *,
        label_smoothing: float = 0.1,
        num_classes: int | None = None,
        layer: str | nn.Module | None = None,
        saliency_source: SourceLike = None,
        generator: torch.Generator | None = None,
    ) -> None:
        checks.probability("label_smoothing", label_smoothing)
        num_classes = getattr(unwrapped(model), "num_classes", None) if num_classes is None else num_classes
        if num_classes is None:
            raise ValueError(f"num_classes must be given for {type(model).__name__}, which has no num_classes")
        checks.whole_number("num_classes", num_classes, least=1)
        self.method = SaliencyGrafting() if method is None else method
        # Its plan of passes is this one's: it checks the arguments and sets up the source, in the model's current mode.
        options: dict[str, Any] = {"layer": layer, "saliency_source": saliency_source, "generator": generator}
        self.source = GraftingStep(model, self.method, passes="mixed", **options).source
        self.label_smoothing = label_smoothing
        self.num_classes: int = num_classes
        self.generator = generator
        self.mixup_enabled = True

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mix one batch.

        Args:
            images: (B, C, H, W), normalised, as the network sees them.
            labels: (B,) or (B, K).

        Returns:
            Mixed images (B, C, H, W) and dense targets (B, K).
        """
        if self.mixup_enabled:
            check_batch(images, labels, self.method.dims)
            checks.label_values(labels)
            saliency = None if self.source is None else self.source(images, labels)
            stream = process_stream() if self.generator is None else self.generator
            drawn = self.method.draw(images, generator=stream)
            mixed = self.method.apply(images, labels, saliency, drawn)
        else:
            mixed = MixedBatch.unmixed(images, labels)
        return mixed.images, _smooth(mixed.targets(self.num_classes), self.label_smoothing)


class GraftingTask(ClassificationTask):
    """The paper's two passes in place of timm's `ClassificationTask`, for a script that runs without `--mixup`.

    Originals and grafts are both trained on, so a step costs 2 forward and 2 backward passes. AMP, EMA, gradient
    accumulation, `compile`, DDP and checkpoints work as with timm's own task.

    Args:
        model: The network.
        criterion: timm's or torch's loss: `LabelSmoothingCrossEntropy`, `BinaryCrossEntropy`, `nn.CrossEntropyLoss`, or
            any other of logits and dense targets (B, K). May be None from timm 1.0.31 on, see criterion_kwargs.
        method: A batch mixer; by default `SaliencyGrafting()`.
        step_options: Further options of `GraftingStep`, such as layer, copies or warmup_steps.
        device: Device, as in timm's task.
        dtype: Dtype, as in timm's task.
        verbose: Whether timm logs the criterion.
        criterion_kwargs: Options of timm's `create_classification_loss` in place of a criterion, from timm 1.0.31 on.

    Example:
        >>> import timm
        >>> task = GraftingTask(timm.create_model("test_resnet", num_classes=10), nn.CrossEntropyLoss())
        >>> result = task(torch.rand(4, 3, 64, 64), torch.arange(4))
        >>> result["loss"].backward()
        >>> result["output"].shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module | None = None,
        method: BatchMixer[Any] | None = None,
        step_options: dict[str, Any] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        verbose: bool = True,
        criterion_kwargs: dict[str, Any] | None = None,
    ) -> None:
        newer = {} if criterion_kwargs is None else {"criterion_kwargs": criterion_kwargs}
        super().__init__(model, criterion, device=device, dtype=dtype, verbose=verbose, **newer)
        if self.criterion is None:
            raise TypeError("criterion must be a loss of dense targets for timm before 1.0.31, got None")
        method = SaliencyGrafting() if method is None else method
        self._options = {"method": method, "criterion": _on_dense_targets(self.criterion), **(step_options or {})}
        self.step = GraftingStep(model, **self._options)
        self._stepped = (model,)  # what the step was built for; in a tuple, so as not to be a second submodule

    @property
    def mixup_enabled(self) -> bool:
        """Whether batches are mixed; timm's name for it. Set it to False for plain training."""
        return self.step.enabled

    @mixup_enabled.setter
    def mixup_enabled(self, enabled: bool) -> None:
        self.step.enabled = enabled

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Both passes and their loss.

        Args:
            input: Images (B, C, H, W).
            target: Labels (B,) or (B, K).

        Returns:
            The loss as "loss", and the logits of the originals as "output".
        """
        if self._stepped[0] is not self.trainable_module:  # compiled or wrapped by DDP since
            state = self.step.state_dict()
            self.step = GraftingStep(self.trainable_module, **self._options)
            self._stepped = (self.trainable_module,)
            self.step.load_state_dict(state)
        out = self.step(input, target)
        return {"loss": out.loss, "output": out.logits}

    def get_task_state(self, module: nn.Module | None = None, ema: bool = False) -> dict[str, Any]:  # noqa: ARG002
        """The step's state, which timm saves in its checkpoints."""
        return {} if ema else self.step.state_dict()

    def load_task_state(
        self,
        state: dict[str, Any] | None,
        strict: bool = True,  # noqa: ARG002
        module: nn.Module | None = None,  # noqa: ARG002
        ema: bool = False,
    ) -> None:
        """Resume the step; checkpoints of other tasks have no state of it."""
        if state and not ema:
            self.step.load_state_dict(state)


def _on_dense_targets(criterion: nn.Module) -> Criterion:
    """A loss that smooths class indices alone is given smoothed rows; any other follows its own rule."""
    name = type(criterion).__name__
    if name in UNFIT:
        raise TypeError(f"criterion must be a loss of dense targets, got {name}, which {UNFIT[name]}")
    if name not in SMOOTH_INDICES_ALONE or getattr(criterion, "smooth_dense", False):
        return criterion
    dense = SoftTargetCrossEntropy() if isinstance(criterion, LabelSmoothingCrossEntropy) else criterion
    return partial(_smoothed_loss, dense, float(cast(float, criterion.smoothing)))  # a lambda could not be pickled


def _smoothed_loss(criterion: nn.Module, smoothing: float, logits: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = criterion(logits, _smooth(targets, smoothing))
    return loss


def _smooth(targets: Tensor, smoothing: float) -> Tensor:
    return targets * (1 - smoothing) + smoothing / targets.shape[1]
