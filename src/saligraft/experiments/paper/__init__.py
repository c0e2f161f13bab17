"""The tables and figures of the paper as declarations, by name.

Times are those of real data with training.precision=bf16 on two cores; fp32 takes half as long again.
"""

from saligraft.experiments.experiment import Experiment
from saligraft.experiments.paper.beyond import BEYOND
from saligraft.experiments.paper.figures import FIGURES
from saligraft.experiments.paper.regimes import regime
from saligraft.experiments.paper.tables import TABLES

__all__ = ["EXPERIMENTS", "regime"]

EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in (*TABLES, *FIGURES, *BEYOND)}
