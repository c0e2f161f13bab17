"""The figures of the paper, and one of the length of training."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from saligraft.config.recipe_file import PLAIN
from saligraft.experiments.experiment import BEST, GRAFTING, LAST, MEMORISED, SCALES, Case, Experiment, Part, ScaleName
from saligraft.experiments.paper.regimes import IN_FULL, RESNET, SMALLER, WRN

SAMPLED = (GRAFTING, "puzzlemix", "saliencymix", "cutmix")
# The paper's four, and three more: with the pair and its maps, their pictures fill two rows of eight.
FIGURE_1 = (*SAMPLED, f"{GRAFTING}-top-k", "attentive-cutmix", "mixup")
PAIRS, DRAWS = 3, 4
COPIES = ("training.epochs=200", "schedule.milestones=[120, 170]", "data.per_class_subset=100")  # §5.2, PuzzleMix


THRESHOLDS: dict[float, tuple[ScaleName, ...]] = {
    0.0: SCALES,
    0.5: IN_FULL,
    0.6: SMALLER,
    0.7: SMALLER,
    0.8: SMALLER,
    0.85: IN_FULL,
    0.9: SMALLER,
    0.95: SMALLER,
    1.0: SCALES,
    1.05: IN_FULL,
    1.1: SMALLER,
    1.2: IN_FULL,
}
TEMPERATURES: dict[float, tuple[ScaleName, ...]] = {
    0.01: SCALES,
    0.02: IN_FULL,
    0.03: SMALLER,
    0.05: IN_FULL,
    0.1: SMALLER,
    0.15: IN_FULL,
    0.2: SCALES,
    0.25: IN_FULL,
    0.3: SMALLER,
}
LENGTHS: dict[ScaleName, tuple[int, ...]] = {
    "smoke": (2, 4),
    "laptop": (30, 60, 120, 240),
    "paper": (100, 200, 400),
}


def _sweep(protocol: str, option: str, values: dict[float, tuple[ScaleName, ...]], symbol: str) -> Part:
    """Saliency Grafting with each value of an option, at the scales that it is run at."""
    cases = (
        Case(name=f"{value:g}", title=f"{symbol} = {value:g}", x=value, settings=(f"{option}={value!r}",), at=at)
        for value, at in values.items()
    )
    return Part(protocol=protocol, methods=(GRAFTING,), cases=tuple(cases))


def _contrasts(method: str, values: Iterable[float], default: float) -> tuple[tuple[str, str], ...]:
    """Every point of a method's curve minus the one that the paper uses."""
    return tuple((f"{method}-{value:g}", f"{method}-{default:g}") for value in values if value != default)


def _lengths() -> Iterator[Case]:
    """Shorter and longer runs; the paper's learning rate falls at a half and three quarters of them."""
    for scale, lengths in LENGTHS.items():
        for epochs in lengths:
            yield Case(
                name=f"{epochs}",
                title=f"{epochs} epochs",
                x=epochs,
                settings=(f"training.epochs={epochs}",),
                paper=(f"schedule.milestones=[{epochs // 2}, {epochs * 3 // 4}]",),
                at=(scale,),
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
            at=SCALES if k < 3 else SMALLER if k == 4 else IN_FULL,
        )
        for k in range(1, 7)
    )


def _draw_samples(folders: Mapping[str, Path], out: Path) -> list[Path]:
    """Figure 1: several methods on the same pairs."""
    from saligraft.experiments.show import scene_of_run  # imports torch, which names of experiments do not need
    from saligraft.experiments.show_methods import write_comparison

    return write_comparison(scene_of_run(folders[GRAFTING], out, PAIRS), ",".join(FIGURE_1))


def _draw_diversity(folders: Mapping[str, Path], out: Path) -> list[Path]:
    """Appendix C: several draws of each method for the same pairs, and of top-k cells, which are always the same."""
    from saligraft.experiments.show import scene_of_run
    from saligraft.experiments.show_methods import compare
    from saligraft.names import TOP_K
    from saligraft.reports.figures import save_comparison

    scene = scene_of_run(folders[GRAFTING], out)
    pairs = compare((GRAFTING, TOP_K, *SAMPLED[1:]), scene.lens, scene.pool, count=PAIRS, seed=0, draws=DRAWS)
    return [save_comparison(pairs, out / "diversity.png")]


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
        time="about 12 minutes of two cores",
        x_title="k",
        equal_passes=(),
        contrasts=(*_contrasts(GRAFTING, range(2, 7), 1), *_contrasts("puzzlemix", range(2, 7), 1)),
    ),
    Experiment(
        name="figure-threshold",
        title="The threshold σ as a multiple of the mean",
        paper="threshold figure, §5.4",
        parts=(
            Part(protocol=WRN, methods=(PLAIN, "cutmix")),
            _sweep(WRN, "method.options.threshold", THRESHOLDS, "σ"),
        ),
        metrics=(BEST, LAST),
        time="about 8 minutes of two cores",
        x_title="σ / σ_mean",
        contrasts=_contrasts(GRAFTING, THRESHOLDS, 1.0),
    ),
    Experiment(
        name="figure-temperature",
        title="The temperature T",
        paper="temperature figure, appendix A",
        parts=(
            Part(protocol=RESNET, methods=(PLAIN,)),
            _sweep(RESNET, "method.options.temperature", TEMPERATURES, "T"),
        ),
        metrics=(BEST, LAST),
        time="about 6 minutes of two cores",
        x_title="temperature T",
        contrasts=_contrasts(GRAFTING, TEMPERATURES, 0.2),
    ),
    Experiment(
        name="figure-length",
        title="The length of training",
        paper="beyond the paper",
        parts=(Part(protocol=WRN, methods=(GRAFTING, "cutmix", PLAIN), cases=tuple(_lengths())),),
        metrics=(BEST, LAST, MEMORISED),
        measures=("training",),
        seeds={"smoke": 1, "laptop": 3, "paper": 3},
        time="about 15 minutes of two cores; less after table-wrn, whose runs it uses",
        x_title="epochs",
        equal_passes=(),
        # Plain training for twice the epochs makes about as many passes.
        contrasts=tuple((f"{GRAFTING}-{n}", f"{PLAIN}-{2 * n}") for lengths in LENGTHS.values() for n in lengths),
    ),
    Experiment(
        name="figure-samples",
        title="Mixed samples of seven methods on the same pairs",
        paper="Figure 1",
        parts=(Part(protocol=WRN, methods=(GRAFTING,)),),
        metrics=(BEST, LAST),
        seeds={"smoke": 1, "laptop": 1, "paper": 1},
        time="about a minute; none after table-wrn, whose run it uses",
        draw=_draw_samples,
    ),
    Experiment(
        name="figure-diversity",
        title="Repeated draws of Saliency Grafting and others for the same pairs",
        paper="appendix C",
        parts=(Part(protocol=WRN, methods=(GRAFTING,)),),
        metrics=(BEST, LAST),
        seeds={"smoke": 1, "laptop": 1, "paper": 1},
        time="about a minute; none after table-wrn, whose run it uses",
        draw=_draw_diversity,
    ),
)
