"""Small faults put into the package one at a time; the tests named with each must fail.

`python tests/mutants.py [NAME ...] [--jobs 2]` tries all of them, or those whose names are given. A mutant that no test
notices, or whose text is no longer found exactly once, ends the script with exit code 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "saligraft"


class Mutant(NamedTuple):
    """A fault: in `file` of the package, the text `old`, found exactly once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str = ""
    """Paths or node ids, separated by spaces; by default the file that mirrors `file`."""

    @property
    def node_ids(self) -> list[str]:
        path = Path(self.file)
        mirror = Path("tests", path.parent, f"test_{path.stem.strip('_')}.py")
        return self.tests.split() or [mirror.as_posix()]


ORACLE = "tests/test_oracle.py"
RESUME = "tests/training/test_trainer.py::test_a_run_that_was_stopped_anywhere_ends_as_if_never_stopped"
AVERAGED = "tests/training/test_trainer.py::test_averaged_weights_are_tested_and_returned"
BUILT_ONCE = "tests/training/test_trainer.py::test_data_network_methods_and_step_are_built_once"
SHARED_ERRORS = "tests/training/test_accelerator.py::test_an_error_of_one_process_ends_all_and_is_reported_by_the_first"

PASSES, MEMORY, RECIPE = "tests/test_step_passes.py", "tests/saliency/test_memory.py", "tests/config/test_recipe.py"

MUTANTS = [
    # The paper: saliency, mask, graft, labels, loss, warm-up. The first seven must fail the oracle by itself.
    Mutant(
        "mask-zero",
        "methods/saliency_grafting.py",
        "mask = chosen & salient",
        "mask = chosen & ~chosen & salient",
        ORACLE,
    ),
    Mutant(
        "mask-every-cell-salient",
        "masks/salient.py",
        "below_peak > (mean_share if",
        "below_peak == (below_peak if",
        ORACLE,
    ),
    Mutant(
        "partner-inverted",
        "methods/saliency_grafting.py",
        "graft_onto_partners(images, partner, shown)",
        "graft_onto_partners(images, partner.argsort(), shown)",
        ORACLE,
    ),
    Mutant(
        "source-and-destination-swapped",
        "methods/saliency_grafting.py",
        "graft_onto_partners(images, partner, shown)",
        "graft_onto_partners(images, partner, ~shown)",
        ORACLE,
    ),
    Mutant(
        "weight-inverted",
        "labels.py",
        "weight = shown / (",
        "weight = kept / (",
        ORACLE,
    ),
    Mutant("warm-up-missing", "step.py", "self.steps_taken <= self.warmup_steps", "self.steps_taken < 0", ORACLE),
    Mutant(
        "warm-up-one-step-short",
        "step.py",
        "self.steps_taken <= self.warmup_steps",
        "self.steps_taken < self.warmup_steps",
        ORACLE,
    ),
    Mutant("saliency-l2-over-channels", "saliency/feature_map.py", "ord=1, dim=1", "ord=2, dim=1"),
    Mutant(
        "saliency-signed",
        "saliency/feature_map.py",
        "part.abs().sum(dim=1, dtype=dtype)",
        "part.sum(dim=1, dtype=dtype)",
    ),
    Mutant("absolute-features-copied", "saliency/feature_map.py", "features.shape[1:].numel()", "1"),
    Mutant("parts-on-every-device", "saliency/chunks.py", 'batch.device.type != "cpu" or ', ""),
    Mutant("parts-in-compiled-graphs", "saliency/chunks.py", "torch.compiler.is_compiling() or ", ""),
    Mutant(
        "spectral-border-repeated",
        "saliency/bottom_up.py",
        "values.narrow(dim, 1, reach).flip(dim)",
        "values.narrow(dim, 0, reach).flip(dim)",
    ),
    Mutant(
        "spectral-rounding-error-lifted",
        "saliency/bottom_up.py",
        '2 * torch.finfo(peak.dtype).eps, float("inf")',
        '0.0, float("inf")',
    ),
    Mutant(
        "spectral-rows-off-by-half",
        "saliency/bottom_up.py",
        "((row + 0.5) * (size / count) - 0.5)",
        "(row * (size / count))",
    ),
    Mutant(
        "negligible-peaks-scaled-up",
        "saliency/bottom_up.py",
        'torch.where(peak <= negligible, float("inf"), peak)',
        "peak",
    ),
    Mutant(
        "labels-weighted-after-the-graft",
        "methods/saliency_grafting.py",
        "    weight = pixel_area(",
        "    mixed = graft_onto_partners(images, partner, shown)\n    weight = pixel_area(",
        "tests/experiments/test_bench.py",
    ),
    Mutant(
        "every-map-taken-for-rectified",
        "saliency/find_layer.py",
        "nonnegative=self.map_is_rectified()",
        "nonnegative=True",
    ),
    Mutant(
        "negative-map-usable", "maps.py", 'norm, (lowest >= 0) & (peak < float("inf")))', 'norm, peak < float("inf"))'
    ),
    Mutant("maps-not-scaled-by-their-peaks", "maps.py", "values = saliency / peak", "values = saliency"),
    Mutant(
        "bilinear-off-by-half", "saliency/rescale.py", "((target + 0.5) * size / grid - 0.5)", "(target * size / grid)"
    ),
    Mutant("bilinear-by-corners", "saliency/rescale.py", "align_corners=False", "align_corners=True"),
    Mutant(
        "pooled-by-maximum",
        "saliency/rescale.py",
        "F.adaptive_avg_pool2d(saliency, pooled)",
        "F.adaptive_max_pool2d(saliency, pooled)",
    ),
    Mutant(
        "compiled-pooling-one-cell-short",
        "saliency/rescale.py",
        "((target + 1) * size + grid - 1) // grid",
        "((target + 1) * size) // grid",
    ),
    Mutant(
        "pooled-by-rows-alone",
        "saliency/rescale.py",
        "(min(height, wanted[0]), min(width, wanted[1]))",
        "(min(height, wanted[0]), width)",
    ),
    Mutant("flat-map-salient", "masks/salient.py", "below_peak > (mean_share if", "below_peak >= (mean_share if"),
    Mutant(
        "temperature-squared",
        "masks/salient.py",
        "max(temperature, precision.tiny)",
        "max(temperature**2, precision.tiny)",
    ),
    Mutant(
        "spread-off-by-one",
        "grafting.py",
        "torch.arange(0, height * rows, rows, device=mask.device) // height",
        "torch.arange(0, height * rows, rows, device=mask.device) // (height + 1)",
    ),
    Mutant("area-of-equal-cells", "grafting.py", "if height % rows or width % columns:", "if False:"),
    Mutant(
        "compiled-area-of-equal-cells",
        "grafting.py",
        "return end // cells - first // cells",
        "return torch.full_like(cell, pixels // cells)",
    ),
    Mutant(
        "compiled-rows-upside-down",
        "grafting.py",
        "_cell_of_pixel(rows, height, mask)",
        "_cell_of_pixel(rows, height, mask).flip(0)",
    ),
    Mutant(
        "importance-by-l1", "labels.py", "vector_norm(unit * visible, ord=norm,", "vector_norm(unit * visible, ord=1,"
    ),
    Mutant("destination-not-occluded", "labels.py", "~mask if mask.dtype == torch.bool else 1 - mask", "mask"),
    Mutant(
        "broken-map-weighed",
        "labels.py",
        "mask = torch.where(source.usable & destination.usable, mask, mask.new_zeros(()))",
        "mask = mask.clone()",
    ),
    Mutant(
        "targets-swapped",
        "batch.py",
        "torch.lerp(destination, source, weight.to(source.dtype))",
        "torch.lerp(source, destination, weight.to(source.dtype))",
    ),
    Mutant(
        "loss-labels-swapped",
        "losses.py",
        "loss = torch.lerp(destination, source, weight)",
        "loss = torch.lerp(source, destination, weight)",
    ),
    Mutant(
        "loss-mean-ignores-class-weight",
        "losses.py",
        "torch.lerp(destination_mass, source_mass, weight).sum()",
        "len(loss)",
    ),
    Mutant("loss-weights-of-copies", "step.py", "(1 / parts,)", "(1 / copies,)"),
    Mutant(
        "grafts-labelled-as-originals",
        "step.py",
        "batch_loss(self.criterion, logits, mixed)",
        "batch_loss(self.criterion, logits, MixedBatch.unmixed(mixed.images, mixed.source_labels))",
        ORACLE,
    ),
    # Passes.
    Mutant("mixed-maps-in-eval-mode", "step.py", 'self.source.mode = "current"', 'self.source.mode = "eval"', PASSES),
    Mutant("memory-of-one-process", "remembering.py", "if ddp is None or size == 1", "if ddp is None or size", PASSES),
    Mutant("memory-blends-a-quarter", "saliency/memory.py", "BLEND = 0.5", "BLEND = 0.25", PASSES),
    Mutant(
        "memory-refreshes-destinations-first",
        "saliency/memory.py",
        "((source_share, everyone), (1 - source_share, partner))",
        "((1 - source_share, partner), (source_share, everyone))",
        f"{PASSES} {MEMORY}",
    ),
    Mutant(
        "memory-ignores-flips",
        "saliency/memory.py",
        "torch.where(flipped.bool()[:, None, None], columns.flip(1), columns)",
        "torch.where(flipped.bool()[:, None, None], columns, columns)",
        f"{PASSES} {MEMORY}",
    ),
    Mutant("memory-keeps-the-first-view", "saliency/memory.py", "right=True) - 1]", "right=False)]"),
    Mutant(
        "memory-has-zeros-for-the-unknown",
        "saliency/memory.py",
        "torch.where(known[:, None, None], maps, torch.nan)",
        "torch.where(known[:, None, None], maps, 0.0)",
        f"{PASSES} {MEMORY}",
    ),
    Mutant(
        "memory-not-restored",
        "training/state.py",
        '"memory": _with_prefix(MEMORY, tensors)}',
        '"memory": self.step.state_dict().get("memory")}',
        "tests/training/test_trainer.py::test_a_run_that_was_stopped_anywhere_ends_as_if_never_stopped",
    ),
    Mutant("losses-never-summed", "config/recipe.py", 'loss_combination == "sum" else', 'loss_combination == "" else'),
    # Draws.
    Mutant(
        "coin-inverted",
        "draws.py",
        'if per == "sample" else 1, generator=generator, device="cpu") < probability',
        'if per == "sample" else 1, generator=generator, device="cpu") > probability',
    ),
    Mutant("beta-skewed", "draws.py", "stream.betavariate(alpha, alpha)", "stream.betavariate(alpha, 2 * alpha)"),
    Mutant(
        "cells-inverted",
        "draws.py",
        'generator=generator, device="cpu") < probability[:, None, None]',
        'generator=generator, device="cpu") > probability[:, None, None]',
    ),
    Mutant("box-not-centred", "draws.py", "(centre - half).clamp", "(centre - 2 * half).clamp"),
    Mutant("box-not-clipped", "draws.py", "torch.minimum(centre + half, limit)", "centre + half"),
    Mutant("keyed-draws-overlap", "data/keyed_draws.py", "index[:, None].long() * count +", "index[:, None].long() +"),
    # Where saliency comes from.
    Mutant(
        "first-map-wins",
        "saliency/find_layer.py",
        "        if self._holds(tensor):\n",
        "        if self._tensor is not None:\n",
    ),
    Mutant(
        "capture-hook-stays",
        "hooks.py",
        "        table.pop(id(hook), None)",
        "        table.get(id(hook))",
        "tests/saliency/test_capture.py",
    ),
    Mutant(
        "mode-not-restored",
        "hooks.py",
        "module.training = training",
        "module.training = module.training",
        "tests/saliency/test_sources.py",
    ),
    Mutant(
        "cam-of-another-class", "saliency/class_activation.py", "weight[labels.long()]", "weight[labels.long() - 1]"
    ),
    Mutant(
        "grad-cam-peak-weights",
        "saliency/class_activation.py",
        ".mean(dim=(2, 3))).clamp(min=0)",
        ".amax(dim=(2, 3))).clamp(min=0)",
    ),
    Mutant(
        "gradient-mean-over-batch",
        "saliency/input_gradient.py",
        'targets, reduction="sum")',
        'targets, reduction="mean")',
    ),
    # Baselines.
    Mutant(
        "mixup-weight-inverted",
        "methods/mixup.py",
        "MixedBatch(mixed, labels, labels[partner], source_weight,",
        "MixedBatch(mixed, labels, labels[partner], 1 - source_weight,",
        "tests/methods/test_mixup.py tests/contracts/test_batch_mixers.py",
    ),
    Mutant("box-one-row-more", "masks/rectangle.py", "(row < bottom)", "(row <= bottom)"),
    Mutant(
        "cutmix-weight-of-destination",
        "methods/cutmix.py",
        "pixel_area(mask, height, width), mask, partner)",
        "1 - pixel_area(mask, height, width), mask, partner)",
        "tests/methods/test_cutmix.py tests/contracts/test_batch_mixers.py",
    ),
    Mutant("peak-is-the-lowest", "methods/saliencymix.py", ".argmax(dim=1)", ".argmin(dim=1)"),
    Mutant("top-k-least", "masks/top_k.py", "flat.topk(k, dim=1)", "flat.topk(k, dim=1, largest=False)"),
    Mutant(
        "puzzle-saliency-swapped",
        "methods/puzzlemix/energy.py",
        "show_source, show_destination = shares[partner], shares",
        "show_source, show_destination = shares, shares[partner]",
    ),
    Mutant(
        "puzzle-seam-sign", "methods/puzzlemix/energy.py", "(d10 + d01 - d11 - d00) / 2", "(d11 + d00 - d10 - d01) / 2"
    ),
    Mutant(
        "puzzle-dearest-bid-wins", "methods/puzzlemix/transport.py", "(offer < held_at[at])", "(offer > held_at[at])"
    ),
    Mutant("cutout-not-centred", "methods/cutout.py", "start = centre - self.size // 2", "start = centre - self.size"),
    Mutant(
        "cutout-probability-ignored",
        "methods/cutout.py",
        "box = box * self._coins(images, generator)[:, None]",
        "self._coins(images, generator)",
    ),
    Mutant(
        "augmix-blend-inverted",
        "methods/augmix/method.py",
        "torch.lerp(clean, mixture, ",
        "torch.lerp(mixture, clean, ",
    ),
    Mutant(
        "augmix-consistency-once",
        "methods/augmix/method.py",
        "+ self.consistency * jensen_shannon_loss",
        "+ jensen_shannon_loss",
    ),
    Mutant(
        "augmix-probability-ignored",
        "methods/augmix/method.py",
        "self.draw_ratio(images, self.alpha, generator) * self._coins(images, generator)",
        "self.draw_ratio(images, self.alpha, generator)",
    ),
    Mutant(
        "manifold-weight-inverted",
        "methods/manifold_mixup/__init__.py",
        "blend(features, features[partner], ",
        "blend(features[partner], features, ",
    ),
    Mutant(
        "manifold-hook-stays-after-an-error",
        "hooks.py",
        "    try:\n        yield\n    finally:\n        table.pop(id(hook), None)",
        "    yield\n    table.pop(id(hook), None)",
        "tests/methods/manifold_mixup/test_init.py",
    ),
    # Hooks.
    Mutant(
        "data-parallel-not-unwrapped",
        "hooks.py",
        "isinstance(outer, DistributedDataParallel | nn.DataParallel)",
        "isinstance(outer, DistributedDataParallel)",
    ),
    Mutant(
        "hook-unnoticed-by-compiled-code",
        "compiling.py",
        'object.__setattr__(layer, "__class__", _hooked_kinds[kind])',
        "pass",
    ),
    Mutant(
        "statistics-written-under-an-uncompiled-graph",
        "compiling.py",
        "stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))",
        "pass",
    ),
    Mutant("compiled-code-hooked", "hooks.py", "if any(map(is_compiled, chain)):", "if False:"),
    Mutant("recomputed-unmixed", "hooks.py", "if _is_recomputed(with_gradient):", "if False:"),
    Mutant(
        "second-thread-let-in", "hooks.py", "if any(_users.get(part, thread) != thread for part in parts):", "if False:"
    ),
    Mutant("buffers-not-copied", "hooks.py", "{name: value.clone() for", "{name: value for"),
    # The registry, and what steps and recipes read from it.
    Mutant(
        "puzzlemix-passes-of-the-mixed-alone",
        "names.py",
        '"PuzzleMix", (2, 2)',
        '"PuzzleMix", (1, 1)',
        "tests/methods/test_registry.py",
    ),
    Mutant(
        "attentive-cutmix-backward-pass-too-many",
        "names.py",
        '"Attentive CutMix", (2, 1)',
        '"Attentive CutMix", (2, 2)',
        "tests/methods/test_registry.py",
    ),
    Mutant(
        "puzzlemix-of-the-feature-map",
        "methods/puzzlemix/method.py",
        'saliency_source: ClassVar[str | None] = "input-gradient"',
        'saliency_source: ClassVar[str | None] = "feature-map"',
        "tests/config/test_method_section.py",
    ),
    Mutant(
        "attentive-cutmix-of-the-pixels",
        "methods/attentive_cutmix.py",
        'saliency_source: ClassVar[str | None] = "feature-map"',
        'saliency_source: ClassVar[str | None] = "fine-grained"',
        "tests/config/test_method_section.py",
    ),
    Mutant(
        "section-without-originals",
        "config/method_section.py",
        "return any(find_method(name).method.with_originals for name in self.parts)",
        "return False",
    ),
    Mutant(
        "step-without-originals",
        "steps/training_step.py",
        "GraftingStep if method.with_originals else MixingStep",
        "MixingStep",
    ),
    Mutant(
        "noise-kept",
        "methods/puzzlemix/method.py",
        "return replace(self, adversarial_probability=0.0) if self.adversarial_probability else self",
        "return self",
        "tests/steps/test_puzzlemix.py",
    ),
    Mutant(
        "noise-step-not-found",
        "steps/training_step.py",
        "PuzzleMixStep if method.makes_noise else step",
        "step",
        "tests/steps/test_puzzlemix.py",
    ),
    Mutant(
        "noise-checked-without-gradient",
        "training/setup.py",
        "for method in (single.without_noise() for single in singles):",
        "for method in singles:",
        "tests/steps/test_puzzlemix.py",
    ),
    Mutant(
        "choice-weights-ignored",
        "draws.py",
        'torch.multinomial(torch.tensor(probabilities, device="cpu"), count,',
        "torch.multinomial(torch.ones(len(probabilities)), count,",
    ),
    Mutant(
        "drop-block-unscaled",
        "regularizers/drop_block.py",
        "features * (kept * scale.to(features.dtype))",
        "features * kept",
    ),
    Mutant(
        "shake-drop-gradient-unscaled",
        "regularizers/shake_drop.py",
        "return gradient * backward_factor, None, None",
        "return gradient, None, None",
    ),
    # Contracts: any batch, inputs untouched, domain checks, autocast, compilation.
    Mutant(
        "sides-exchanged",
        "methods/cutmix.py",
        "rectangle_mask(box, height, width)",
        "rectangle_mask(box, width, height)",
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "partner-labels-lost",
        "methods/cutmix.py",
        "MixedBatch(mixed, labels, labels[partner],",
        "MixedBatch(mixed, labels, labels,",
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "choice-weights-misplaced",
        "methods/choice.py",
        "torch.cat([part.source_weight for part in parts])[order]",
        "torch.cat([part.source_weight for part in parts])",
        "tests/methods/test_choice.py tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "manifold-partner-labels-lost",
        "methods/manifold_mixup/__init__.py",
        "AlteredBatch(images, labels, labels[partner], weight,",
        "AlteredBatch(images, labels, labels, weight,",
    ),
    Mutant(
        "augmix-views-widened",
        "methods/augmix/method.py",
        "[:, None, None, None]).to(images.dtype)",
        "[:, None, None, None])",
    ),
    Mutant(
        "resized-under-autocast",
        "saliency/rescale.py",
        "@checks.without_autocast\n",
        "",
        "tests/contracts/test_autocast.py",
    ),
    Mutant(
        "a-graph-for-each-way-to-resize",
        "saliency/rescale.py",
        "torch.where(shrinks, pooling, interpolation)",
        "(pooling if size >= grid else interpolation)",
        "tests/contracts/test_pure_functions.py",
    ),
    Mutant(
        "values-looked-at",
        "masks/salient.py",
        "    if threshold == 0:\n",
        "    if threshold == 0 or not bool(saliency.any()):\n",
        "tests/contracts/test_pure_functions.py",
    ),
    Mutant(
        "pixels-changed-in-place",
        "grafting.py",
        "return torch.where(shown, source, destination)",
        "return source.copy_(torch.where(shown, source, destination))",
    ),
    Mutant(
        "gradients-of-images-lost",
        "grafting.py",
        "apart = partners.requires_grad or shown",
        "apart = shown",
        "tests/test_grafting.py tests/contracts/test_pure_functions.py",
    ),
    Mutant("gradients-of-weights-lost", "grafting.py", "shown.requires_grad or torch", "torch"),
    Mutant(
        "originals-written-over",
        "grafting.py",
        "torch.where(shown, images, partners, out=None if apart else partners)",
        "torch.where(shown, images, partners, out=None if apart else images)",
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "widened-images",
        "grafting.py",
        "weight.to(wide.dtype)).to(source.dtype)",
        "weight.to(wide.dtype))",
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "negative-rows-pass",
        "checks.py",
        "(value.isfinite() & (value >= 0)).all()",
        "value.isfinite().all()",
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "missing-partners-pass",
        "methods/base.py",
        '    checks.per_sample("partner", partner, images)\n',
        '    if partner is not None:\n        checks.per_sample("partner", partner, images)\n',
        "tests/contracts/test_batch_mixers.py",
    ),
    Mutant(
        "finer-maps-pass",
        "checks.py",
        "if value.shape[1] > height or value.shape[2] > width:",
        "if value.shape[1] > height and value.shape[2] > width:",
        "tests/methods/test_saliency_grafting.py tests/methods/test_attentive_cutmix.py",
    ),
    Mutant(
        "integer-weights-pass",
        "checks.py",
        "    per_sample(name, value, images)\n    if not value.is_floating_point():",
        "    per_sample(name, value, images)\n    if value.is_complex():",
        "tests/methods/test_mixup.py",
    ),
    # Data.
    Mutant("occlude-least-salient", "data/occlude.py", "descending=True, stable=True", "descending=False, stable=True"),
    Mutant("subset-not-nested", "data/per_class_subset.py", "key(seed, label)", "key(seed, label, count)"),
    Mutant("subset-ignores-the-seed", "data/per_class_subset.py", "key(seed, label)", "key(label)"),
    Mutant(
        "crop-the-other-way",
        "data/loader.py",
        "rows = torch.arange(height, device=images.device) + top[:, None]",
        "rows = torch.arange(height, device=images.device) - top[:, None]",
    ),
    Mutant(
        "flip-one-off",
        "data/loader.py",
        "width - 1 - columns, columns) + left[:, None]",
        "width - columns, columns) + left[:, None]",
    ),
    Mutant(
        "crop-one-offset-missing",
        "data/loader.py",
        "(draws[:, :2] * (2 * self.pad + 1))",
        "(draws[:, :2] * (2 * self.pad))",
    ),
    Mutant("mean-not-divided", "data/dataset.py", "1 / (255 * width), -centre / width", "1 / (255 * width), -centre"),
    Mutant("order-same-each-epoch", "data/loader.py", "key(self.seed, self.epoch, ORDER)", "key(self.seed, ORDER)"),
    Mutant(
        "loader-starts-over",
        "data/loader.py",
        "range(start * self.batch_size, ",
        "range(0, ",
        RESUME,
    ),
    Mutant(
        "digest-ignores-labels",
        "data/dataset.py",
        "hashlib.sha256(self.labels.numpy().tobytes())\n        for block in",
        "hashlib.sha256()\n        for block in",
    ),
    Mutant(
        "streamed-digest-ignores-labels",
        "data/dataset.py",
        "hashlib.sha256(self.labels.numpy().tobytes())\n        for name in",
        "hashlib.sha256()\n        for name in",
    ),
    Mutant(
        "sample-not-normalised",
        "data/dataset.py",
        "self.view(index).float() * scale + shift",
        "self.view(index).float() / 255",
    ),
    Mutant(
        "sample-from-the-end-misplaced",
        "data/dataset.py",
        "index = range(len(self))[index]",
        "index = range(len(self))[abs(index)]",
    ),
    Mutant("wrong-checksum-passes", "data/files.py", "if actual != expected:", "if not actual:"),
    Mutant(
        "pickle-may-import",
        "data/restricted_unpickler.py",
        "        if substitute is None:\n",
        "        if substitute is None:\n            return super().find_class(module_name, global_name)\n",
    ),
    Mutant(
        "cache-damage-unnoticed",
        "data/cache.py",
        "if _with_shape(checksum, sizes) != expected:",
        "if not expected:",
        "tests/data/test_cache.py::test_a_damaged_file_is_noticed_and_rebuilt",
    ),
    # Recipes.
    Mutant("milestone-one-late", "config/schedule.py", "sum(epoch >= milestone ", "sum(epoch > milestone "),
    Mutant("one-cycle-never-falls", "config/schedule.py", "if progress < self.peak:", "if progress <= 1:"),
    Mutant(
        "override-loses-to-file",
        "config/recipe_file.py",
        "table = merge(_read_with_bases(file, row), changed)",
        "table = merge(changed, _read_with_bases(file, row))",
    ),
    Mutant(
        "old-options-kept",
        "config/recipe_file.py",
        'if not keep_options and "name" in change and change["name"] != old.get("name"):',
        "if False:",
    ),
    Mutant(
        "row-not-applied",
        "config/recipe_file.py",
        'merge(base, {"expected": []} | settings)',
        'merge(base, {"expected": []})',
    ),
    Mutant(
        "row-extends-the-file-alone",
        "config/recipe_file.py",
        'tables[settings.pop("extends", PLAIN)]',
        'tables[settings.pop("extends", PLAIN) and PLAIN]',
    ),
    Mutant(
        "row-not-read", "config/recipe_file.py", "table = dict(_rows(file)[row])", "table = dict(_rows(file)[PLAIN])"
    ),
    Mutant(
        "row-keeps-the-expected-of-another",
        "config/recipe_file.py",
        'merge(base, {"expected": []} | settings)',
        "merge(base, settings)",
        "tests/config/test_bundled_recipes.py",
    ),
    Mutant("warm-up-beyond-the-end", "config/recipe.py", "if training.warmup_epochs > training.epochs:", "if False:"),
    # The trainer.
    Mutant(
        "learning-rate-once-an-epoch",
        "training/trainer.py",
        "self.set_learning_rate(epoch + position.batch / stage.batches)",
        "self.set_learning_rate(epoch)",
        "tests/training/test_trainer.py::test_the_schedule_sets_the_learning_rate_of_every_step",
    ),
    Mutant(
        "accumulated-loss-summed",
        "training/trainer.py",
        "out.loss / self.recipe.training.accumulate",
        "out.loss",
        "tests/training/test_trainer.py::test_accumulated_parts_make_up_one_step_of_the_entire_batch",
    ),
    Mutant(
        "draws-same-each-step",
        "training/trainer.py",
        "(self.recipe.seed, number, self.accelerator.process_index)",
        "(self.recipe.seed, self.accelerator.process_index)",
        "tests/training/test_trainer.py::test_processes_and_batches_draw_differently",
    ),
    Mutant("norms-decayed", "training/optimizer.py", "parameter.ndim > 1", "parameter.ndim > 0"),
    Mutant(
        "top-1-counts-second",
        "training/results.py",
        "(rank >= 1).sum()",
        "(rank > 1).sum()",
        "tests/training/test_evaluate.py::test_scores_equal_a_count_by_hand",
    ),
    Mutant(
        "evaluation-in-training-mode",
        "training/evaluate.py",
        "network.eval()",
        "network.train()",
        "tests/training/test_evaluate.py::test_the_mode_of_each_module_is_put_back",
    ),
    Mutant(
        "statistics-copied-at-every-step",
        "pixels.py",
        "like.new_full((1, 1, 1), value)",
        "like.new_tensor([[[value]]])",
        "tests/contracts/test_fake_gpu.py",
    ),
    Mutant(
        "sums-wait-for-the-device",
        "training/results.py",
        "torch.full_like(loss, len(labels))])",
        'torch.full_like(loss, len(labels))]).to("cpu")',
        "tests/contracts/test_fake_gpu.py",
    ),
    Mutant(
        "remembered-whatever-the-geometry",
        "data/own_data.py",
        "geometry_known: ClassVar[bool] = False",
        "geometry_known: ClassVar[bool] = True",
        "tests/training/test_own_code.py::test_mistakes_are_one_line",
    ),
    Mutant(
        "layer-of-a-frozen-network",
        "config/saliency_section.py",
        'self.name == "feature-map" and self.network is None',
        'self.name == "feature-map"',
        "tests/training/test_evaluate.py::test_maps_of_a_run_are_of_its_own_network_whatever_its_method_used",
    ),
    Mutant(
        "optimizer-not-restored",
        "training/state.py",
        '_load_optimizer(self.optimizer, _with_prefix(OPTIMIZER, tensors), state["optimizer"])',
        "pass",
        RESUME,
    ),
    Mutant(
        "average-not-restored",
        "training/state.py",
        "        if self.average is not None:\n            self.average.load_state_dict",
        "        if False:\n            self.average.load_state_dict",
        "tests/training/test_state.py::test_a_restored_learner_captures_the_same",
    ),
    Mutant("resume-repeats-the-epoch", "training/state.py", 'batch=state["batch"],', "batch=0,", RESUME),
    Mutant(
        "resume-forgets-the-warm-up",
        "training/trainer.py",
        "self.step.steps_taken = self.timeline.first_batch(self.position.epoch) + self.position.batch",
        "self.step.steps_taken = self.position.batch",
        RESUME,
    ),
    Mutant("damaged-checkpoint-passes", "training/checkpoint.py", "if checksum != expected:", "if not checksum:"),
    Mutant("oldest-checkpoints-kept", "training/checkpoint.py", "[-keep:]", "[:keep]"),
    Mutant("user-files-deleted", "training/checkpoint.py", "if OWN_FILE.fullmatch(file.name)]", "if file.is_file()]"),
    Mutant("foreign-folder-overwritten", "training/run_folder.py", "if names and not folder.marker:", "if False:"),
    Mutant(
        "deletion-leaves-the-folder",
        "training/run_folder.py",
        "if file.is_dir() or not file.parent.resolve().is_relative_to(root):",
        "if file.is_dir():",
    ),
    Mutant(
        "broken-batch-keeps-statistics",
        "training/trainer.py",
        "buffer.copy_(value)",
        "buffer.copy_(buffer)",
        "tests/training/test_trainer.py::test_a_broken_batch_is_skipped_if_the_recipe_says_so",
    ),
    Mutant("last-ten-are-the-first", "training/results.py", "errors[-LAST_EPOCHS:]", "errors[:LAST_EPOCHS]"),
    Mutant(
        "network-built-twice",
        "training/trainer.py",
        "setup.check_method(recipe, network,",
        "setup.check_method(recipe, setup.make_network(recipe, self.train_data),",
        BUILT_ONCE,
    ),
    Mutant(
        "methods-built-twice",
        "training/trainer.py",
        "self.generator, methods, warmup_steps",
        "self.generator, recipe.method.build(normalization), warmup_steps",
        BUILT_ONCE,
    ),
    Mutant(
        "frozen-network-built-twice",
        "training/trainer.py",
        "warmup_steps=warmup, frozen=frozen",
        "warmup_steps=warmup",
        BUILT_ONCE,
    ),
    Mutant(
        "average-not-tested",
        "training/trainer.py",
        "self.network if self.average is None else self.average.network",
        "self.network",
        AVERAGED,
    ),
    Mutant(
        "error-stays-in-its-process",
        "training/accelerator.py",
        "if failed not in (None, accelerator.process_index):",
        "if False:",
        SHARED_ERRORS,
    ),
    Mutant(
        "error-not-sent",
        "training/accelerator.py",
        "gather_object([None if failure is None else str(failure)])",
        "gather_object([None])",
        SHARED_ERRORS,
    ),
    Mutant(
        "own-error-reported-elsewhere",
        "training/accelerator.py",
        "if failed not in (None, accelerator.process_index):",
        "if failed is not None:",
        SHARED_ERRORS,
    ),
    # Locks and pages.
    Mutant(
        "foreign-lock-removed",
        "io/locks.py",
        "if restore and self._content_before is not None:",
        "if False:",
        "tests/training/test_run_folder.py",
    ),
    Mutant(
        "foreign-lock-left-changed",
        "io/locks.py",
        "_overwrite(file.fileno(), self._content_before)",
        "file.fileno()",
        "tests/training/test_run_folder.py",
    ),
    Mutant(
        "foreign-lock-removed-on-a-full-disk",
        "io/locks.py",
        "            if self._content_before is None:\n                self._unlink()",
        "            if True:\n                self._unlink()",
    ),
    Mutant("foreign-lock-changed-on-a-full-disk", "io/locks.py", "_overwrite(handle, self._content_before)", "pass"),
    Mutant("full-disk-not-reported", "io/streams.py", "except self._ignored:", "except OSError:"),
    Mutant(
        "broken-stdout-fails-the-command",
        "cli/__init__.py",
        "unbreakable(sys.stdout, BrokenPipeError)",
        "sys.stdout",
        "tests/cli/test_init.py::test_a_reader_that_leaves_does_not_fail_the_command",
    ),
    Mutant(
        "foreign-lock-taken",
        "io/locks.py",
        "if content and not (content.isdigit() and len(content) < LONGEST):",
        "if False:",
    ),
    Mutant("lock-by-a-link", "io/locks.py", "if self.path.is_symlink() or (", "if ("),
    Mutant("names-not-escaped", "reports/page.py", "autoescape=True", "autoescape=False"),
]


def run_tests(tests: list[str], source: Path) -> subprocess.CompletedProcess[str]:
    """Run tests with the package of `source`; hypothesis tries the same examples each time."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def attempt(mutant: Mutant) -> str:
    """Return "killed", or what is wrong."""
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8") if (PACKAGE / mutant.file).is_file() else ""
    if text.count(mutant.old) != 1:
        return f"its text is found {text.count(mutant.old)} times in {mutant.file}, not once"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "saligraft"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        run = run_tests(mutant.node_ids, Path(folder))
    if run.returncode == 1:
        return "killed"
    # Any other code, such as that of a test that no longer exists, proves nothing.
    return "SURVIVED" if run.returncode == 0 else f"pytest ended with code {run.returncode}:\n{run.stdout[-2000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all if none is named")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in options.names if name not in known]
    if unknown or len(known) != len(MUTANTS):
        parser.error(f"unknown or repeated names: {', '.join(unknown)}")
    chosen = [known[name] for name in options.names] or MUTANTS

    plain = run_tests(sorted({test for mutant in chosen for test in mutant.node_ids}), PACKAGE.parent)
    if plain.returncode != 0:
        print(f"the tests must pass without a mutant:\n{plain.stdout[-4000:]}")
        return 1
    killed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(chosen, pool.map(attempt, chosen), strict=True):
            killed += outcome == "killed"
            print(f"{mutant.name:40} {outcome}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
