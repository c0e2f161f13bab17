"""The tables of the paper. Rows and the paper's values are those of the bundled protocols."""

from saligraft.config.recipe_file import PLAIN
from saligraft.experiments.experiment import (
    BEST,
    BEST_TOP5,
    GRAFTING,
    LAST,
    LOSS,
    MEMORISED,
    SCALES,
    Case,
    Experiment,
    Metric,
    Part,
)
from saligraft.experiments.paper.regimes import (
    CUB,
    IMAGENET,
    IMAGENET_FIXED,
    IN_FULL,
    PYRAMIDNET,
    SPEECH,
    TINY,
    WRN,
)

OCCLUDED = tuple(
    Metric(f"occlusion/{percent:g}", f"top-1 error, {percent:g} % hidden", "top1", occlude=percent)
    for percent in (0.0, 12.5, 25.0)
)
OCCLUSION_METHODS = (PLAIN, "mixup", "cutmix", "saliencymix", "puzzlemix", GRAFTING)
# At the scale laptop T = 0.2 grafts 14.7 of 64 cells of the WRN (`saligraft reproduce readings`: E[ΣM], 8×8)
# and of the PyramidNet (`saligraft match-temperature`, one run).
ABLATION = {
    "deterministic-area": Case(laptop=("method.options.k=15",)),
    "stochastic-area": Case(),
    "stochastic-saliency": Case(),
}

TABLES = (
    Experiment(
        name="table-pyramidnet",
        title="CIFAR-100, PyramidNet-200",
        paper="Table 2",
        table=2,
        parts=(
            Part(
                protocol=PYRAMIDNET,
                methods=(
                    PLAIN,
                    "cutout",
                    "drop-block",
                    "mixup",
                    "manifold-mixup",
                    "shake-drop",
                    "cutout-mixup",
                    "cutout-manifold-mixup",
                    "cutmix",
                    "cutmix-shake-drop",
                    "attentive-cutmix",
                    "saliencymix",
                    "puzzlemix",
                    GRAFTING,
                    f"{GRAFTING}-shake-drop",
                ),
            ),
        ),
        metrics=(BEST, LAST, BEST_TOP5, LOSS, MEMORISED),
        measures=("training",),
        seeds={"smoke": 1, "laptop": 2, "paper": 3},
        time="about 10 minutes of two cores",
    ),
    Experiment(
        name="table-wrn",
        title="CIFAR-100, WRN-28-10",
        paper="Table 3",
        table=3,
        parts=(
            Part(
                protocol=WRN,
                methods=(
                    PLAIN,
                    "mixup",
                    "manifold-mixup",
                    "cutmix",
                    "cutmix-every-batch",
                    "augmix",
                    "saliencymix",
                    "saliencymix-dropout",
                    "puzzlemix",
                    GRAFTING,
                ),
            ),
        ),
        metrics=(BEST, LAST, BEST_TOP5, LOSS, MEMORISED),
        measures=("training",),
        time="about 13 minutes of two cores",
    ),
    Experiment(
        name="table-tiny",
        title="Tiny-ImageNet, ResNet-18",
        paper="Table 4",
        table=4,
        parts=(Part(protocol=TINY, methods=(PLAIN, "mixup", "cutmix", "saliencymix", "puzzlemix", GRAFTING)),),
        metrics=(
            Metric("top1_error/last10_mean", LAST.title, "top1"),
            Metric("top1_error/best", BEST.title),
            Metric("top5_error/last10_mean", "top-5 error, last 10 epochs", "top5"),
            LOSS,
        ),
        time="about 15 minutes of two cores",
    ),
    Experiment(
        name="table-imagenet",
        title="ImageNet, ResNet-50",
        paper="Table 5",
        table=5,
        parts=(
            Part(
                protocol=IMAGENET,
                methods=(PLAIN, "mixup", "manifold-mixup", "cutmix", "augmix", "puzzlemix", GRAFTING),
            ),
            Part(
                protocol=IMAGENET_FIXED,
                methods=(GRAFTING,),
                cases=(Case(name="224px", title="224 px", at=IN_FULL),),
                group="",
            ),
        ),
        seeds={"smoke": 1, "laptop": 2, "paper": 1},
        time="not measured: ImageNet was not available; on shapes about 30 minutes of two cores, extrapolated",
    ),
    Experiment(
        name="table-scarcity",
        title="CIFAR-100 with few images a class",
        paper="Table 6",
        table=6,
        parts=(
            Part(
                protocol=WRN,
                methods=(PLAIN, "mixup", "cutmix", "puzzlemix", GRAFTING),
                cases=tuple(
                    Case(
                        name=f"{count}",
                        title=f"{count} images a class",
                        paper=(f"data.per_class_subset={count}",),
                        laptop=(f"data.per_class_subset={count}",),
                        smoke=(f"data.per_class_subset={few}",),
                        at=at,
                    )
                    for count, few, at in ((50, 2, SCALES), (100, 3, SCALES), (250, 4, IN_FULL))
                ),
            ),
        ),
        metrics=(BEST, LAST),
        time="about 20 minutes of two cores",
    ),
    Experiment(
        name="table-occlusion",
        title="The most salient cells hidden",
        paper="Table 7",
        table=7,
        parts=(
            Part(protocol=TINY, methods=OCCLUSION_METHODS, group="", title="Tiny-ImageNet"),
            Part(
                protocol=WRN,
                methods=OCCLUSION_METHODS,
                cases=(Case(at=("smoke", "laptop")),),  # not in the paper; the runs of table-wrn
                group="cifar100",
                title="CIFAR-100",
            ),
        ),
        metrics=OCCLUDED,
        measures=("occlusion",),
        time="about 30 minutes of two cores; nothing but tests after table-tiny and table-wrn, whose runs it uses",
    ),
    Experiment(
        name="table-ablation",
        title="Selection and labels",
        paper="Table 8",
        table=8,
        parts=tuple(
            Part(protocol=protocol, methods=(f"{GRAFTING}-{variant}",), cases=(case,), group=group, title=title)
            for protocol, group, title in ((WRN, "wrn", "Wide ResNet"), (PYRAMIDNET, "pyramidnet", "PyramidNet"))
            for variant, case in ABLATION.items()
        ),
        metrics=(BEST, LAST),
        subject=f"{GRAFTING}-stochastic-saliency",
        contrasts=tuple(
            (f"{group}-{GRAFTING}-stochastic-area", f"{group}-{GRAFTING}-deterministic-area")
            for group in ("wrn", "pyramidnet")
        ),
        time="about 10 minutes of two cores",
    ),
    Experiment(
        name="table-speech",
        title="Speech Commands, WRN-28-10",
        paper="Table 9",
        table=9,
        parts=(Part(protocol=SPEECH, methods=(PLAIN, "mixup", "cutmix", GRAFTING)),),
        metrics=(BEST, LAST),
        time="about 40 minutes of two cores with 100 clips a word, extrapolated",
    ),
    Experiment(
        name="table-localization",
        title="Weakly supervised localisation on CUB-200-2011",
        paper="Table 10",
        table=10,
        parts=(Part(protocol=CUB, methods=(PLAIN, "mixup", "cutmix", "puzzlemix", GRAFTING)),),
        metrics=(
            Metric("localization/accuracy", "localisation accuracy", "localization", higher_is_better=True),
            Metric("top1_error/best", BEST.title),
            Metric("top1_error/final", "top-1 error, last epoch"),
        ),
        measures=("localization",),
        time="about 5 minutes of two cores on 20 classes",
    ),
    Experiment(
        name="table-saliency",
        title="Forward against backward saliency",
        paper="Table 11",
        table=11,
        parts=(Part(protocol=WRN, methods=(PLAIN, f"{GRAFTING}-cam", GRAFTING)),),
        metrics=(BEST, LAST, BEST_TOP5),
        time="about 5 minutes of two cores; less after table-wrn, whose runs it uses",
    ),
)
