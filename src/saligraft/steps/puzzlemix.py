"""The training step of PuzzleMix with adversarial noise.

Kim, Choo & Song, ICML 2020; coins, start, radius, step and share as in the authors' code.
"""

from typing import Any

import torch
from torch import Tensor, nn

from saligraft import draws
from saligraft.methods.puzzlemix import PixelScale, PuzzleMix, adversarial, noisy_start
from saligraft.saliency.input_gradient import InputGradient, gradient_saliency
from saligraft.step import MixingStep, StepOutput


class PuzzleMixStep(MixingStep):
    """Train with PuzzleMix and its authors' adversarial noise; one gradient gives both noise and saliency.

    Coins for source and destination are flipped once per batch. If either is heads, the gradient is computed at a noisy
    start, and the mixed images show pixels one step further up the loss; otherwise the step equals `MixingStep`. The
    noise is adversarial to the network of the saliency source.

    Args:
        model: The network.
        method: PuzzleMix with an `adversarial_probability`.
        **options: Options of `MixingStep`; a `saliency_source` must be an `InputGradient` of the loss.

    Example:
        >>> import torch, saligraft as sg
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
        >>> step = sg.PuzzleMixStep(model, sg.PuzzleMix(adversarial_probability=0.1))
        >>> type(step.source).__name__
        'InputGradient'
    """

    def __init__(self, model: nn.Module, method: PuzzleMix, **options: Any) -> None:
        if not isinstance(method, PuzzleMix):
            raise TypeError(f"method must be PuzzleMix(), got {type(method).__name__}")
        super().__init__(model, method, **options)
        if not isinstance(self.source, InputGradient) or self.source.of != "loss":
            of = f" of {self.source.of!r}" if isinstance(self.source, InputGradient) else ""
            raise ValueError(
                "saliency_source must be an InputGradient of 'loss' where adversarial_probability is above 0, "
                f"got {type(self.source).__name__}{of}"
            )
        self.input_gradient: InputGradient = self.source
        self.mixer = method.without_noise()
        self.noise_probability = method.adversarial_probability
        self.radius = method.adversarial_radius
        self.scale = PixelScale(method.pixel_mean, method.pixel_std)

    def _train(self, images: Tensor, labels: Tensor) -> StepOutput:
        drawn = self.mixer.draw(images, generator=self._stream())
        noisy_sides = (torch.rand(2, generator=self._stream(), device="cpu") < self.noise_probability).tolist()
        shown: tuple[Tensor, Tensor] | None = None
        if any(noisy_sides):
            gradient, noisy = self._noise(images, labels)
            source, destination = (noisy if side else images for side in noisy_sides)
            # Samples paired with themselves are left unchanged.
            alone = (drawn.partner == torch.arange(len(images), device=images.device))[:, None, None, None]
            shown = (torch.where(alone, images, source), torch.where(alone, images, destination[drawn.partner]))
        else:
            gradient = self.input_gradient.gradient(images, labels)
        saliency = gradient_saliency(gradient, self.input_gradient.over)
        self._warn_of_zeros(self.input_gradient, saliency)
        return self._output(self.mixer.apply(images, labels, saliency, drawn, shown))

    def _noise(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient at a random start, and the images with a random share of one signed step from it."""
        share = float(torch.rand((), generator=self._stream(), device="cpu"))
        uniform = draws.to_device(torch.rand(images.shape, generator=self._stream(), device="cpu"), images.device)
        start = noisy_start(images, uniform.to(images.dtype), self.scale, self.radius)
        gradient = self.input_gradient.gradient(start, labels)
        # A gradient that is not finite leaves its sample unmixed, but its pixels must stay finite.
        return gradient, adversarial(images, start, gradient.nan_to_num(), share, self.scale, self.radius)
