"""What the paper leaves open: the regime of the scale `laptop`, readings of the text, passes, label truth."""

from dataclasses import replace

from saligraft.config.recipe_file import PLAIN
from saligraft.experiments.experiment import BEST, GRAFTING, LAST, MEMORISED, Case, Experiment, Metric, Part
from saligraft.experiments.paper.regimes import CUB, HELD_OUT, SHAPES, TINY, WRN

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
                _reading("joint", "one batch of originals and grafts", "training.passes=joint"),
                *PASSES,
            ),
        ),
        Part(
            protocol=WRN,
            methods=(PLAIN, GRAFTING),
            group="softmax-bce",
            title="binary cross-entropy of the softmax",
            cases=(
                _reading("", "", "training.loss=softmax-bce"),
                # For 10 classes its gradient is a tenth to a fifth of cross-entropy's.
                _reading("lr", "learning rate 0.5", "training.loss=softmax-bce", "optimizer.lr=0.5"),
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
    contrasts=tuple(
        (f"{GRAFTING}-{one}", f"{GRAFTING}{other}")
        for one, other in (("mixed", ""), ("remembered", ""), ("remembered", "-mixed"))
    ),
)

LABEL_TRUTH = Experiment(
    name="label-truth",
    title="Labels against the share of each object that mixed images show, with a trained network's maps",
    paper="§4.2",
    parts=tuple(
        Part(
            protocol=protocol,
            methods=(GRAFTING,),
            cases=(
                Case(
                    settings=("training.keep_checkpoints=4",),
                    paper=(f"training.checkpoint_epochs={paper_epochs}",),
                    laptop=(f"training.checkpoint_epochs={epochs}",),
                    smoke=("training.checkpoint_epochs=1",),
                ),
            ),
            group=group,
            title=title,
        )
        for protocol, group, title, epochs, paper_epochs in (
            (SHAPES, "shapes", "shapes, true masks", 15, 8),
            (TINY, "tiny", "Tiny-ImageNet, boxes", 10, 150),
            (CUB, "cub", "CUB, boxes", 8, 150),
        )
    ),
    metrics=(
        *(
            Metric(f"label_truth/{method}, {key}", f"{title}, {words}")
            for method, title in (
                (GRAFTING, "grafting"),
                ("cutmix", "CutMix"),
                ("saliencymix", "SaliencyMix"),
                ("attentive-cutmix", "Attentive CutMix"),
            )
            for key, words in (
                ("error of area labels", "error of area labels"),
                ("error of calibrated labels", "error of calibrated labels"),
                ("calibrated minus area", "error of calibrated minus area labels"),
                ("rank correlation of area labels", "rank correlation of area labels"),
                ("rank correlation of calibrated labels", "rank correlation of calibrated labels"),
                ("unseen by own labels", "% that name an unseen object"),
                ("diversity", "diversity"),
            )
        ),
        *(
            Metric(f"label_course/{label} labels, {share} %", f"grafting, {label} labels after {share} % of training")
            for label in ("area", "calibrated")
            for share in (25, 50, 75, 100)
        ),
    ),
    measures=("label_truth", "label_course"),
    time="about 10 minutes of two cores",
    equal_passes=(),
)

BEYOND = (REGIME, READINGS, PASSES_COMPARED, LABEL_TRUTH)
