"""The paper's pictures of samples, Figure 1 and appendix C, with the network of a finished run."""

from collections.abc import Mapping
from pathlib import Path

from saligraft.experiments.experiment import GRAFTING
from saligraft.experiments.show import POOL, Scene, choose, network_of_run
from saligraft.experiments.show_methods import compare, write_comparison
from saligraft.reports.figures import save_comparison
from saligraft.training import load_recipe
from saligraft.training.run_folder import RECIPE
from saligraft.training.setup import load_split

METHODS = (GRAFTING, "puzzlemix", "saliencymix", "cutmix")
PAIRS, DRAWS = 3, 4


def draw_samples(folders: Mapping[str, Path], out: Path) -> list[Path]:
    """Draw Figure 1: four methods on the same pairs.

    Args:
        folders: Run folders by row.
        out: Folder to write to.

    Returns:
        The files.
    """
    return write_comparison(_scene(folders, out), ",".join(METHODS))


def draw_diversity(folders: Mapping[str, Path], out: Path) -> list[Path]:
    """Draw appendix C: several draws of each method for the same pairs.

    Args:
        folders: Run folders by row.
        out: Folder to write to.

    Returns:
        The file.
    """
    scene = _scene(folders, out)
    pairs = compare(METHODS, scene.lens, scene.pool, count=PAIRS, seed=0, draws=DRAWS)
    return [save_comparison(pairs, out / "diversity.png")]


def _scene(folders: Mapping[str, Path], out: Path) -> Scene:
    data = load_split(load_recipe(folders[GRAFTING] / RECIPE), "test")
    pool = choose(data, POOL, seed=0)
    return Scene(pool=pool, lens=network_of_run(folders[GRAFTING]), out=out, rows=PAIRS, seed=0)
