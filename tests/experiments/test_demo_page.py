"""The demo's table and page, from runs with invented numbers and from one real training."""

from math import sqrt
from pathlib import Path

import pytest
from tests.reports.pages import assert_self_contained

from saligraft.experiments.demo import (
    ARMS,
    EQUAL_TIME,
    GRAFTING,
    PLAIN,
    TITLES,
    ArmRun,
    DemoRuns,
    DemoSettings,
    train_arm,
)
from saligraft.experiments.demo_page import result_table, write_demo_page

SETTINGS = DemoSettings(epochs=2, per_class=3)
FINAL = {PLAIN: (30.0, 36.0), "cutmix": (31.0, 33.0), GRAFTING: (25.0, 29.0), EQUAL_TIME: (40.0, 41.0)}
MIXING_SECONDS = {PLAIN: 2.0, "cutmix": 2.5, GRAFTING: 4.0, EQUAL_TIME: 2.0}


def invented_run(arm: str, seed: int, folder: Path = Path("nowhere")) -> ArmRun:
    final = FINAL[arm][seed]
    return ArmRun(
        arm=arm,
        seed=seed,
        folder=folder,
        error={"best": final - 1, "last10_mean": final + 2, "final": final},
        curve=(60.0, final),
        wall_seconds=9.0,
        seconds=4.0,
        mixing_seconds=MIXING_SECONDS[arm],
        images_per_second=1234.5,
    )


def invented_demo(seeds: int, *arms: str) -> DemoRuns:
    runs = [invented_run(arm, seed) for arm in arms for seed in range(seeds)]
    return DemoRuns(settings=SETTINGS, runs=runs, seeds_run=seeds, why="as requested")


def test_a_row_is_the_mean_and_its_error_over_seeds() -> None:
    table = result_table(invented_demo(2, *ARMS))
    row = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}[ARMS[GRAFTING]]
    deviation = sqrt((25 - 27) ** 2 + (29 - 27) ** 2)  # of two values, over n - 1 = 1
    error = f"± {deviation / sqrt(2):.1f}"
    assert row["Error"] == f"27.0 {error}"
    assert row["Best epoch"] == f"26.0 {error}"
    assert row["Last 10"] == f"29.0 {error}"
    assert row["Images/s"] == "1,234"
    assert row["Cost"] == "2.00×"


def test_the_lowest_of_each_error_is_marked() -> None:
    grafting = list(ARMS).index(GRAFTING)
    assert result_table(invented_demo(2, *ARMS)).best == {(grafting, column) for column in (1, 2, 3)}


def test_one_seed_has_no_spread() -> None:
    table = result_table(invented_demo(1, *ARMS))
    assert [row[1] for row in table.rows] == ["30.0", "31.0", "25.0"]
    assert "from 1 seed (as requested)" in table.notes[0]


def test_plain_training_of_equal_time_has_a_row_only_if_it_was_run() -> None:
    assert [row[0] for row in result_table(invented_demo(1, *ARMS)).rows] == list(ARMS.values())
    assert result_table(invented_demo(1, *ARMS, EQUAL_TIME)).rows[-1][0] == TITLES[EQUAL_TIME]


@pytest.mark.slow
def test_the_page_shows_the_networks_own_gallery_and_every_arm(tmp_path: Path) -> None:
    demo = invented_demo(2, *ARMS, EQUAL_TIME)
    trained = train_arm(tmp_path, SETTINGS, GRAFTING, 0, 2)
    demo.runs = [trained if (run.arm, run.seed) == (GRAFTING, 0) else run for run in demo.runs]
    assert (trained.folder / "report.html").is_file()
    path = write_demo_page(tmp_path, demo, "saligraft demo --seeds 2")
    page = assert_self_contained(path.read_text(encoding="utf-8"))
    assert all(title in page.text for title in TITLES.values())
    assert len(page.named("article")) == 6
    for words in ("saligraft demo --seeds 2", "3 images per class, 2 epochs, 2 seeds", "also given", 'name = "shapes"'):
        assert words in page.text
