"""How the paper's protocols are run at each scale.

`paper` is the protocol to the letter. `laptop` is the same experiment in the regime below, on real data with
--data-root and on `shapes` without. `smoke` trains two epochs of a few images, to see that everything runs.
"""

from saligraft.experiments.experiment import Regime, ScaleName

WRN, PYRAMIDNET, RESNET = "cifar100-wrn-28-10", "cifar100-pyramidnet-200-240", "cifar100-resnet-18"
SHAPES = "shapes-wrn-10-2"
TINY, CUB, SPEECH = "tiny-imagenet-resnet-18", "cub-resnet-50", "speech-commands-wrn-28-10"
IMAGENET, IMAGENET_FIXED = "imagenet-resnet-50-fast", "imagenet-resnet-50"
# The paper trains with both and reports the better (appendix B.1), which selects on test error.
WEIGHT_DECAYS = ("optimizer.weight_decay=0.0005", "optimizer.weight_decay=0.0001")


SMALLER: tuple[ScaleName, ...] = ("laptop", "paper")
IN_FULL: tuple[ScaleName, ...] = ("paper",)

SMOKE = (
    "data.options.size=16",
    "data.options.per_class=4",
    "data.pad=2",
    "training.epochs=2",
    "training.batch_size=20",
)
# A regime in which plain training memorises its images within a minute, chosen by plain training alone, on held-out
# training images (`saligraft reproduce regime`), and by cost. Frozen before any method was tested on test images.
SHORT = (
    "training.epochs=60",
    "training.batch_size=50",
    "training.checkpoint_epochs=20",
    "optimizer.name=sgd",
    "optimizer.lr=0.1",
    "optimizer.nesterov=true",
    "optimizer.weight_decay=0.0001",
    "schedule.peak=0.15",
)
FEW_SHAPES = ("data.options.per_class=250", "data.per_class_subset=100", "data.test_subset=100")
CIFAR = ("data.classes=10", "data.per_class_subset=50", "data.test_subset=100")
HALF_MAPS = ("network.options.stem_stride=2",)  # the last map is 4×4 instead of 8×8, for a quarter of the cost
CUB_SHORT = ("training.epochs=30", "optimizer.head_lr=0.1")  # one rate for all layers: nothing is pretrained
HELD_OUT = ("data.held_out=true",)
NARROW = ("network.name=wrn-10-1",)
SMALL_RESNET = ("network.name=resnet-10-small", "network.options.width=16", "network.options.stem_stride=2")


def regime(protocol: str, scale: ScaleName, real_data: bool) -> Regime:
    """Return how a protocol of the paper is run at one scale.

    Args:
        protocol: Bundled protocol of the paper, or `shapes-wrn-10-2`.
        scale: "smoke", "laptop" or "paper".
        real_data: Whether --data-root is given; the scale `laptop` uses `shapes` otherwise.
    """
    if scale == "paper":
        is_cifar = protocol in (WRN, PYRAMIDNET, RESNET)
        return Regime(recipe=protocol, variants=WEIGHT_DECAYS if is_cifar else ("",))
    shapes = "shapes-pyramidnet-20-24" if protocol == PYRAMIDNET else SHAPES
    if scale == "smoke":
        narrow = () if protocol == PYRAMIDNET else NARROW
        return Regime(recipe=shapes, settings=(*narrow, *SMOKE), warmup_epochs=1)
    large = protocol in (TINY, CUB, IMAGENET, IMAGENET_FIXED)  # 64 px, so that the last map has 4×4 cells
    if not real_data or protocol == SHAPES:
        network = ("data.options.size=64", *SMALL_RESNET) if large else HALF_MAPS
        return Regime(recipe=shapes, settings=(*network, *FEW_SHAPES, *SHORT), warmup_epochs=5)
    twins = {
        WRN: Regime(recipe="cifar100-wrn-10-2", settings=(*HALF_MAPS, *CIFAR, *SHORT), warmup_epochs=5),
        PYRAMIDNET: Regime(recipe=shapes, settings=("data.name=cifar100", *HALF_MAPS, *CIFAR, *SHORT), warmup_epochs=5),
        TINY: Regime(recipe="tiny-imagenet-resnet-10", settings=(*SHORT, "training.epochs=40"), warmup_epochs=5),
        CUB: Regime(recipe="cub-resnet-10", settings=(*SMALL_RESNET, *SHORT, *CUB_SHORT), warmup_epochs=3),
        SPEECH: Regime(recipe="speech-commands-wrn-10-2", settings=NARROW, warmup_epochs=2),
        IMAGENET: Regime(recipe="imagenet-resnet-10", warmup_epochs=2),
    }
    twins |= {RESNET: twins[WRN], IMAGENET_FIXED: twins[IMAGENET]}
    return twins[protocol]
