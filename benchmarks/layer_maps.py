"""Which layer's map shows the object: after the last norm or before it, on small networks trained a little on `shapes`.

    python benchmarks/layer_maps.py [--steps 2000] [--seed 0]

Prints the table of docs/assumptions.md: for each network and layer, accuracy on test images, the map's standard
deviation over its mean, and the share of the map on the object over the object's share of the image (1.0 is chance).
"""

import argparse

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saligraft.data.shapes import MEAN, STD, shapes
from saligraft.saliency.capture import SaliencyCapture
from saligraft.saliency.class_activation import GradCam

SIZE, BATCH = 32, 64
CLASSES = ("triangle", "star", "cross", "ring")  # of all ten classes, these transformers learn nothing in minutes
TOKENS = {"img_size": SIZE, "patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 2}
NETWORKS = {
    "ViT": ("vit_tiny_patch16_224", TOKENS),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", TOKENS),
    "EVA, class token": ("eva02_tiny_patch14_224", {**TOKENS, "global_pool": "token"}),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": SIZE, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4},
    ),
    "ConvNeXt": ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (24, 48, 96, 96), "output_stride": 8}),
}


def zoomed(images: Tensor, boxes: Tensor, share: Tensor) -> Tensor:
    """Crop between the object's box (share 0) and the whole image (share 1), at the size of the image."""
    corners, whole = boxes.float() / SIZE, torch.tensor([0.0, 0.0, 1.0, 1.0])
    x0, y0, x1, y1 = (corners + share[:, None] * (whole - corners)).T
    side = torch.maximum(x1 - x0, y1 - y0)
    zero = torch.zeros_like(side)
    rows = torch.stack([side, zero, x0 + x1 - 1, zero, side, y0 + y1 - 1], dim=1)
    grid = F.affine_grid(rows.view(-1, 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def train(network: nn.Module, images: Tensor, labels: Tensor, boxes: Tensor, steps: int) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.15)
    network.train()
    for step in range(steps):
        chosen = torch.randint(len(images), (BATCH,))
        # On whole images alone these networks stay at chance for minutes: they see the object large first.
        views = zoomed(images[chosen], boxes[chosen], torch.rand(BATCH) * min(1.0, 1.5 * step / steps))
        output = network(views.flip(-1) if step % 2 else views)
        outputs = output if isinstance(output, tuple) else (output,)  # DeiT trains both of its heads
        loss = torch.stack([F.cross_entropy(logits, labels[chosen]) for logits in outputs]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def measures(saliency: Tensor, masks: Tensor) -> tuple[float, float]:
    """Standard deviation over mean, and share on the object over chance; maps that are all zero have none."""
    seen = saliency.flatten(1).any(dim=1)
    saliency, masks = saliency[seen], masks[seen]
    spread = saliency.flatten(1).std(dim=1) / saliency.flatten(1).mean(dim=1)
    share = F.adaptive_avg_pool2d(masks.float()[:, None], saliency.shape[1:])[:, 0]
    on_object = (saliency * share).sum(dim=(1, 2)) / saliency.sum(dim=(1, 2))
    return float(spread.mean()), float((on_object / share.mean(dim=(1, 2))).mean())


def rows(name: str, network: nn.Module, images: Tensor, labels: Tensor, masks: Tensor) -> list[str]:
    with torch.no_grad():
        accuracy = float((network(images).argmax(dim=1) == labels).float().mean())
    maps = []
    for rule, after_norm in (("after the last norm", True), ("before it: the default", False)):
        capture = SaliencyCapture(network)
        capture.find(images[:2], after_norm=after_norm)
        with torch.no_grad():
            maps.append((rule, capture(images)[1], capture.site))
    source = GradCam(network)
    maps.append(("Grad-CAM's default", source(images, labels), source.site))
    lines = []
    for rule, saliency, site in maps:
        spread, on_object = measures(saliency, masks)
        zero = float((~saliency.flatten(1).any(dim=1)).float().mean())
        lines.append(f"| {name} | {accuracy:.0%} | {rule} | {site} | {spread:.2f} | {on_object:.2f} | {zero:.0%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="training steps of 64 images; 0 for random weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    data, test = shapes(split="train", size=SIZE, per_class=1000), shapes(split="test", size=SIZE, per_class=100)
    kept = torch.tensor([data.classes.index(name) for name in CLASSES])
    data, test = (split.subset(torch.isin(split.labels, kept).nonzero()[:, 0]) for split in (data, test))
    images, test_images = ((split.images / 255 - mean) / std for split in (data, test))
    labels, test_labels = (torch.searchsorted(kept, split.labels) for split in (data, test))
    print("| network | accuracy | map | layer | std / mean | on object / chance | all zero |")
    print("|---|---|---|---|---|---|---|")
    for name in options.networks:
        model, settings = NETWORKS[name]
        torch.manual_seed(options.seed)
        network = timm.create_model(model, num_classes=len(CLASSES), **settings)
        if options.steps:
            train(network, images, labels, data.boxes, options.steps)
        network.eval()
        print("\n".join(rows(name, network, test_images, test_labels, test.masks)), flush=True)


if __name__ == "__main__":
    main()
