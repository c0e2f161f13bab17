"""The tables and figures of the paper as declarations. Rows and the paper's values are those of the bundled protocols.

Scales: `paper` is the protocol to the letter. `laptop` is the same experiment in the regime below, on real data with
--data-root and on `shapes` without. `smoke` trains two epochs of a few images, to see that everything runs.
Times are those of real data with training.precision=bf16 on two cores; fp32 takes half as long again.
"""

from dataclasses import replace

from saligraft.config.recipe_file import PLAIN
from saligraft.experiments.experiment import (
    BEST,
    BEST_TOP5,
    GRAFTING,
    LAST,
    Case,
    Experiment,
    Metric,
    Part,
    Regime,
    ScaleName,
)
from saligraft.experiments.samples import draw_diversity, draw_samples

WRN, PYRAMIDNET, RESNET = "cifar100-wrn-28-10", "cifar100-pyramidnet-200-240", "cifar100-resnet-18"
TINY, CUB, SPEECH = "tiny-imagenet-resnet-18", "cub-resnet-50", "speech-commands-wrn-28-10"
IMAGENET, IMAGENET_FIXED = "imagenet-resnet-50-fast", "imagenet-resnet-50"
# The paper trains with both and reports the better (appendix B.1), which selects on test error.
WEIGHT_DECAYS = ("optimizer.weight_decay=0.0005", "optimizer.weight_decay=0.0001")

ALWAYS: tuple[ScaleName, ...] = ("smoke", "laptop", "paper")
SMALLER: tuple[ScaleName, ...] = ("laptop", "paper")
IN_FULL: tuple[ScaleName, ...] = ("paper",)
COPIES = ("training.epochs=200", "schedule.milestones=[120, 170]", "data.per_class_subset=100")  # §5.2, PuzzleMix

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
SHAPES = ("data.options.per_class=250", "data.per_class_subset=100", "data.test_subset=100")
CIFAR = ("data.classes=10", "data.per_class_subset=50", "data.test_subset=100")
HALF_MAPS = ("network.options.stem_stride=2",)  # the last map is 4×4 instead of 8×8, for a quarter of the cost
CUB_SHORT = ("training.epochs=30", "optimizer.head_lr=0.1")  # one rate for all layers: nothing is pretrained
HELD_OUT = ("data.held_out=true",)
NARROW = ("network.name=wrn-10-1",)
SMALL_RESNET = ("network.name=resnet-10-small", "network.options.width=16", "network.options.stem_stride=2")


def regime(protocol: str, scale: ScaleName, real_data: bool) -> Regime:
    """Return how a protocol of the paper is run at one scale.

    Args:
        protocol: Bundled protocol.
        scale: "smoke", "laptop" or "paper".
        real_data: Whether --data-root is given; the scale `laptop` uses `shapes` otherwise.
    """
    if scale == "paper":
        is_cifar = protocol in (WRN, PYRAMIDNET, RESNET)
        return Regime(recipe=protocol, variants=WEIGHT_DECAYS if is_cifar else ("",))
    shapes = "shapes-pyramidnet-20-24" if protocol == PYRAMIDNET else "shapes-wrn-10-2"
    if scale == "smoke":
        narrow = () if protocol == PYRAMIDNET else NARROW
        return Regime(recipe=shapes, settings=(*narrow, *SMOKE), warmup_epochs=1)
    large = protocol in (TINY, CUB, IMAGENET, IMAGENET_FIXED)  # 64 px, so that the last map has 4×4 cells
    if not real_data:
        network = ("data.options.size=64", *SMALL_RESNET) if large else HALF_MAPS
        return Regime(recipe=shapes, settings=(*network, *SHAPES, *SHORT), warmup_epochs=5)
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


def _sweep(option: str, values: dict[float, tuple[ScaleName, ...]], symbol: str) -> tuple[Case, ...]:
    """One case for each value of an option, with the scales it is run at."""
    return tuple(
        Case(name=f"{value:g}", title=f"{symbol} = {value:g}", x=value, settings=(f"{option}={value!r}",), at=at)
        for value, at in values.items()
    )


def _lengths(scale: ScaleName, *epochs: int) -> tuple[Case, ...]:
    """Shorter and longer runs; the paper's learning rate falls at a half and three quarters of them."""
    return tuple(
        Case(
            name=f"{count}",
            title=f"{count} epochs",
            x=count,
            settings=(f"training.epochs={count}",),
            paper=(f"schedule.milestones=[{count // 2}, {count * 3 // 4}]",),
            at=(scale,),
        )
        for count in epochs
    )


def _copies(*settings: str) -> tuple[Case, ...]:
    """k mixed batches beside the originals (§5.2)."""
    return tuple(
        Case(
            name=f"{k}",
            title=f"k = {k}",
            x=k,
            settings=(*settings, f"training.copies={k}"),
            paper=COPIES,
            at=ALWAYS if k < 3 else SMALLER if k == 4 else IN_FULL,
        )
        for k in range(1, 7)
    )


MEMORISED = Metric("training/top1_error", "top-1 error on the training images")
OCCLUDED = tuple(
    Metric(f"occlusion/{percent:g}", f"top-1 error, {percent:g} % hidden", "top1", occlude=percent)
    for percent in (0.0, 12.5, 25.0)
)
# At the scale laptop, T = 0.2 grafts 14.6 of 64 cells on average (`saligraft reproduce readings`: E[ΣM], 8×8).
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
                    *(PLAIN, "cutout", "drop-block", "mixup", "manifold-mixup", "shake-drop", "cutout-mixup"),
                    *("cutout-manifold-mixup", "cutmix", "cutmix-shake-drop", "attentive-cutmix", "saliencymix"),
                    *("puzzlemix", GRAFTING, f"{GRAFTING}-shake-drop"),
                ),
            ),
        ),
        seeds={"smoke": 1, "laptop": 2, "paper": 3},
        time="about 20 minutes of two cores, extrapolated",
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
                    *(PLAIN, "mixup", "manifold-mixup", "cutmix", "augmix", "saliencymix", "saliencymix-dropout"),
                    *("puzzlemix", GRAFTING),
                ),
            ),
        ),
        metrics=(BEST, LAST, BEST_TOP5, MEMORISED),
        measures=("training",),
        time="about 12 minutes of two cores",
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
        time="not measured, for want of ImageNet; on shapes about 30 minutes of two cores, extrapolated",
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
                    for count, few, at in ((50, 2, ALWAYS), (100, 3, ALWAYS), (250, 4, IN_FULL))
                ),
            ),
        ),
        metrics=(BEST, LAST),
        time="about 20 minutes of two cores",
    ),
    Experiment(
        name="table-occlusion",
        title="Tiny-ImageNet with the most salient cells hidden",
        paper="Table 7",
        table=7,
        parts=(Part(protocol=TINY, methods=(PLAIN, "mixup", "cutmix", "saliencymix", "puzzlemix", GRAFTING)),),
        metrics=OCCLUDED,
        measures=("occlusion",),
        time="about 15 minutes of two cores; nothing but tests after table-tiny, whose runs it uses",
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
            Metric("top1_error/final", "top-1 error, last epoch"),
        ),
        measures=("localization",),
        time="about 50 minutes of two cores on 20 classes, extrapolated",
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

FIGURES = (
    Experiment(
        name="figure-copies",
        title="k grafted batches beside each original one",
        paper="diversity figure, §5.2",
        parts=(
            Part(protocol=WRN, methods=(PLAIN,), cases=(Case(paper=COPIES),)),
            Part(protocol=WRN, methods=(GRAFTING,), cases=_copies()),
            Part(protocol=WRN, methods=("puzzlemix",), cases=_copies("training.originals=true")),
        ),
        metrics=(BEST, LAST),
        seeds={"smoke": 2, "laptop": 3, "paper": 5},
        time="about 45 minutes of two cores, extrapolated",
        x_title="k",
        equal_passes=(),
    ),
    Experiment(
        name="figure-threshold",
        title="The threshold σ as a multiple of the mean",
        paper="threshold figure, §5.4",
        parts=(
            Part(protocol=WRN, methods=(PLAIN, "cutmix")),
            Part(
                protocol=WRN,
                methods=(GRAFTING,),
                cases=_sweep(
                    "method.options.threshold",
                    {
                        **{0.0: ALWAYS, 0.5: IN_FULL, 0.6: SMALLER, 0.7: IN_FULL, 0.8: SMALLER, 0.85: IN_FULL},
                        **{0.9: SMALLER, 0.95: IN_FULL, 1.0: ALWAYS, 1.05: IN_FULL, 1.1: SMALLER, 1.2: IN_FULL},
                    },
                    "σ",
                ),
            ),
        ),
        metrics=(BEST, LAST),
        time="about 40 minutes of two cores, extrapolated",
        x_title="σ / σ_mean",
    ),
    Experiment(
        name="figure-temperature",
        title="The temperature T",
        paper="temperature figure, appendix A",
        parts=(
            Part(protocol=RESNET, methods=(PLAIN,)),
            Part(
                protocol=RESNET,
                methods=(GRAFTING,),
                cases=_sweep(
                    "method.options.temperature",
                    {
                        **{0.01: ALWAYS, 0.02: IN_FULL, 0.03: SMALLER, 0.05: IN_FULL, 0.1: SMALLER, 0.15: IN_FULL},
                        **{0.2: ALWAYS, 0.25: IN_FULL, 0.3: SMALLER},
                    },
                    "T",
                ),
            ),
        ),
        metrics=(BEST, LAST),
        time="about 30 minutes of two cores, extrapolated",
        x_title="temperature T",
    ),
    Experiment(
        name="figure-length",
        title="The length of training",
        paper="beyond the paper",
        parts=(
            Part(
                protocol=WRN,
                methods=(GRAFTING, "cutmix", PLAIN),
                cases=(*_lengths("smoke", 2, 3), *_lengths("laptop", 30, 60, 120), *_lengths("paper", 100, 400)),
            ),
        ),
        metrics=(BEST, LAST, MEMORISED),
        measures=("training",),
        seeds={"smoke": 1, "laptop": 2, "paper": 3},
        time="about 10 minutes of two cores; less after table-wrn, whose runs it uses",
        x_title="epochs",
        equal_passes=(),
    ),
    Experiment(
        name="figure-samples",
        title="Mixed samples of four methods on the same pairs",
        paper="Figure 1",
        parts=(Part(protocol=WRN, methods=(GRAFTING,)),),
        metrics=(BEST, LAST),
        seeds={"smoke": 1, "laptop": 1, "paper": 1},
        time="about a minute; none after table-wrn, whose run it uses",
        draw=draw_samples,
    ),
    Experiment(
        name="figure-diversity",
        title="Repeated draws of Saliency Grafting and others for the same pairs",
        paper="appendix C",
        parts=(Part(protocol=WRN, methods=(GRAFTING,)),),
        metrics=(BEST, LAST),
        seeds={"smoke": 1, "laptop": 1, "paper": 1},
        time="about a minute; none after table-wrn, whose run it uses",
        draw=draw_diversity,
    ),
)

REGIME = Experiment(
    name="regime",
    title="Plain training on held-out images: where does it overfit?",
    paper="for the scale laptop",
    parts=(
        Part(
            protocol=WRN,
            methods=(PLAIN,),
            group="",
            cases=(
                Case(title="as chosen", laptop=HELD_OUT),
                *(
                    Case(name=name, title=title, settings=(setting,), laptop=HELD_OUT, at=("laptop",))
                    for name, title, setting in (
                        ("narrow", "WRN-10-1", "network.name=wrn-10-1"),
                        ("wide", "WRN-10-3", "network.name=wrn-10-3"),
                        ("full-maps", "last map 8×8", "network.options.stem_stride=1"),
                        ("short", "30 epochs", "training.epochs=30"),
                        ("long", "100 epochs", "training.epochs=100"),
                        ("few", "25 images a class", "data.per_class_subset=25"),
                        ("decay", "weight decay 0.0005", "optimizer.weight_decay=0.0005"),
                    )
                ),
            ),
        ),
    ),
    metrics=(LAST, MEMORISED),
    measures=("training",),
    subject=PLAIN,
    seeds={"smoke": 1, "laptop": 2, "paper": 1},
    time="about 8 minutes of two cores",
    equal_passes=(),
)


def _reading(name: str, title: str, *settings: str) -> Case:
    """One reading of Saliency Grafting, tested at the scale `laptop` on images that no table is tested on."""
    return Case(name=name, title=title, settings=settings, laptop=HELD_OUT)


PASSES = (
    _reading("mixed", "grafts only", "training.passes=mixed"),
    _reading("remembered", "remembered maps", "training.passes=remembered"),
)
READINGS = Experiment(
    name="readings",
    title="Readings of the paper that only a trained network can tell apart, on held-out images",
    paper="§4.1, §4.3, §5",
    parts=(
        Part(protocol=WRN, methods=(PLAIN, "cutmix"), group="", cases=(Case(laptop=HELD_OUT),)),
        Part(
            protocol=WRN,
            methods=(GRAFTING,),
            group="",
            cases=(
                _reading("", ""),
                _reading("max", "maps divided by their maximum", "method.options.normalize=max"),
                _reading(
                    "channel-mean",
                    "mean over channels, not normalised",
                    "method.saliency.options.channels=mean",
                    "method.options.normalize=none",
                ),
                _reading("residual", "map of the last residual sum", "method.saliency.layer=stages.2"),
                _reading("sum", "losses summed", "training.loss_combination=sum"),
                _reading("weights", "grafts weighted three times", "training.loss_weights=[1.0, 3.0]"),
                _reading("softmax-bce", "binary cross-entropy of the softmax", "training.loss=softmax-bce"),
                *PASSES,
            ),
        ),
    ),
    metrics=(
        BEST,
        LAST,
        Metric("maps/grafted cells, 4×4", "E[ΣM], 4×4"),
        Metric("maps/grafted cells, 8×8", "E[ΣM], 8×8"),
        *(Metric(f"maps/salient at T={T:g}, 8×8", f"% salient, T = {T:g}") for T in (0.01, 0.05, 0.2, 0.3)),
        *(Metric(f"maps/salient at σ={s:g}, 8×8", f"% salient, σ = {s:g}") for s in (0.6, 0.8, 0.9, 1.1)),
    ),
    measures=("maps",),
    time="about 15 minutes of two cores",
)

PASSES_COMPARED = Experiment(
    name="passes",
    title="What to pass through the network: originals and grafts, grafts alone, or grafts by remembered maps",
    paper="beyond the paper",
    parts=(
        Part(protocol=WRN, methods=(PLAIN, "mixup", "cutmix"), group=""),
        Part(
            protocol=WRN,
            methods=(GRAFTING,),
            group="",
            cases=(Case(), *(replace(case, laptop=()) for case in PASSES)),
        ),
    ),
    metrics=(BEST, LAST),
    time="about 10 minutes of two cores; less after table-wrn, whose runs it uses",
    equal_passes=(PLAIN, "mixup", "cutmix"),
)

LABEL_TRUTH = Experiment(
    name="label-truth",
    title="Labels against the share of each object that mixed images show, with a trained network's maps",
    paper="§4.2",
    parts=(Part(protocol=TINY, methods=(GRAFTING,)),),
    metrics=tuple(
        Metric(f"label_truth/{method}, {key}", f"{title}, {words}")
        for method, title in ((GRAFTING, "grafting"), ("cutmix", "CutMix"), ("saliencymix", "SaliencyMix"))
        for key, words in (
            ("error of area labels", "error of area labels"),
            ("error of calibrated labels", "error of calibrated labels"),
            ("unseen by own labels", "% that name an unseen object"),
            ("diversity", "diversity"),
        )
    ),
    measures=("label_truth",),
    time="about 5 minutes of two cores; none after table-tiny, whose runs it uses",
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*TABLES, *FIGURES, REGIME, READINGS, PASSES_COMPARED, LABEL_TRUTH)
}
