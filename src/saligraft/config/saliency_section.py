"""[method.saliency] of a recipe: where the maps come from, for methods that use them."""

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, cast

from pydantic import Field

from saligraft.config.sections import NetworkSection, RecipeSection, complete_options
from saligraft.import_path import call, import_object, is_import_path
from saligraft.names import LARGEST_VIEW, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from saligraft.hooks import Mode
    from saligraft.saliency.base import SaliencySource
    from saligraft.saliency.sources import SourceLike


class Normalization(NamedTuple):
    """How the loader normalises images, for pixels in [0, 1].

    Args:
        mean: Mean of each channel.
        std: Standard deviation of each channel.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


class SaliencySection(RecipeSection):
    """[method.saliency]: where the maps come from, for methods that use them."""

    name: str | None = None
    """A source of `saligraft list saliency`, or "package.module:Name"; by default that of the method's authors."""
    layer: str | None = None
    """Module of the network whose features are used; by default the last spatial map."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the source, such as of and over; others keep their defaults, mean and std are the data's."""

    network: NetworkSection | None = None
    """A frozen network to use instead of the one in training, as Attentive CutMix's authors do, with its weights."""
    size: Annotated[int, Field(ge=1, le=LARGEST_VIEW)] | None = None
    """Side in pixels at which `network` sees the images; by default their own."""

    @property
    def feature_layer(self) -> str | None:
        """Layer of the trained network for its feature map; None where `layer` is of another source or network."""
        return self.layer if self.name == "feature-map" and self.network is None else None

    def complete(self, own: str, *, in_training_pass: bool) -> Self:
        """Return the section with its name and all its options filled in.

        Args:
            own: The source that the method's authors use, the default.
            in_training_pass: Whether the map comes from the training pass of the originals.
        """
        from saligraft.saliency.sources import SALIENCY_SOURCES

        name = self.name or own
        if name not in SALIENCY_SOURCES and not is_import_path(name):
            valid = ", ".join(SALIENCY_SOURCES)
            raise ValueError(f"unknown saliency source {name!r}; valid: {valid}{did_you_mean(name, SALIENCY_SOURCES)}")
        accepted = _arguments(name)
        if self.layer is not None and "layer" not in accepted:
            raise ValueError(f"layer must be left out for {name}, which reads no layer, got {self.layer!r}")
        if self.network is not None and "model" not in accepted:
            raise ValueError(f"network must be left out for {name}, which reads no network, got {self.network.name!r}")
        if self.size is not None and self.network is None:
            raise ValueError(f"size must be left out where no network is named, got {self.size}")
        in_training_pass = in_training_pass and self.network is None
        # A map from the training pass has that pass's mode.
        others = ("model", "layer", "mean", "std", *(("mode",) if in_training_pass else ()))
        defaults = {option: p.default for option, p in accepted.items() if option not in others}
        options = dict(self.options)
        owner = f"saliency source {name}" + (" in the training pass" if in_training_pass else "")
        complete_options(options, defaults, owner)
        complete = {option: value for option, value in options.items() if value is not None}  # TOML has no null
        return self.model_copy(update={"name": name, "options": complete})

    def build(
        self, model: "nn.Module", data: Normalization, mode: "Mode | None" = None, frozen: "nn.Module | None" = None
    ) -> "SaliencySource":
        """Build the source; bottom-up ones undo the normalisation first.

        Args:
            model: The network that the source reads, if it reads any.
            data: How the loader normalises images.
            mode: Mode of the network in a pass for maps alone; overrides the section's.
            frozen: The section's `network`, if `frozen_network` has already built it.
        """
        from saligraft.saliency.sources import ResizedImages, saliency_source

        accepted = _arguments(self.name or "feature-map")
        added = data._asdict() if "mean" in accepted else {}
        network = self.frozen_network(model, data) if frozen is None else frozen
        if network is not None:
            model = network.to(next(model.parameters()).device)
        elif mode is not None and "mode" in accepted:
            added["mode"] = mode
        options = {**self.options, **added}
        if self.name is not None and is_import_path(self.name):
            source = saliency_source(_own_source(self.name, model, {**options, "layer": self.layer}), model)
        else:
            source = saliency_source(self.name, model, layer=self.layer, **options)
        return source if self.size is None else ResizedImages(source, self.size)

    def frozen_network(self, model: "nn.Module", data: Normalization) -> "nn.Module | None":
        """Build the frozen network, the same in each process; None if the section names none.

        Args:
            model: The network in training, whose number of classes the frozen one gets.
            data: How the loader normalises images, with one entry per channel.
        """
        if self.network is None:
            return None
        import torch

        from saligraft.hooks import unwrapped
        from saligraft.networks import build_network
        from saligraft.networks.weights import find_head, load_weights_file

        head = find_head(unwrapped(model))
        classes = len(head[-1]) if head else 1000
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = build_network(self.network.name, classes, len(data.mean), **self.network.options)
        if self.network.weights is not None:
            load_weights_file(network, self.network.weights, "method.saliency.network.weights")
        return network.eval()


def _arguments(source: str) -> Mapping[str, inspect.Parameter]:
    from saligraft.saliency.sources import SALIENCY_SOURCES

    if not is_import_path(source):
        return inspect.signature(SALIENCY_SOURCES[source]).parameters
    parameters = inspect.signature(import_object(source, "saliency source")).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in ("images", "labels")}


def _own_source(path: str, model: "nn.Module", options: dict[str, Any]) -> "SourceLike":
    """A class derived from `SaliencySource`, built, or a function of images and perhaps labels, with its options."""
    from saligraft.saliency.base import NetworkSource, SaliencySource

    source = import_object(path, "saliency source")
    options = {name: value for name, value in options.items() if name != "layer" or value is not None}
    if not isinstance(source, type):
        return functools.partial(source, **options)
    if not issubclass(source, SaliencySource):
        raise ValueError(f"saliency source {path!r} must be a function or a SaliencySource, got {source.__name__}")
    bound = {"model": model} if issubclass(source, NetworkSource) else {}
    return cast(SaliencySource, call(path, "saliency source", {**bound, **options}))
