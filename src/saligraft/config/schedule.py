"""Learning-rate schedules: pure functions of how far the run has come, so that nothing is carried from step to step.

Each returns a factor of the recipe's learning rate. `epoch` is the number of epochs done, with its fraction
(step / steps per epoch); `epochs` is the length of the run.
"""

import bisect
import math
from collections.abc import Sequence


def constant(epoch: float, epochs: int) -> float:  # noqa: ARG001  (every schedule is asked alike)
    """One learning rate throughout."""
    return 1.0


def step(epoch: float, epochs: int, *, milestones: Sequence[float], decay: float) -> float:  # noqa: ARG001
    """Multiply by `decay` at each milestone, as in appendix B."""
    return decay ** sum(epoch >= milestone for milestone in milestones)


def cosine(epoch: float, epochs: int, *, final: float) -> float:
    """Half a cosine from 1 to `final` (Loshchilov & Hutter 2017, without restarts)."""
    return _anneal(1.0, final, epoch / epochs)


def one_cycle(epoch: float, epochs: int, *, start: float, peak: float, final: float) -> float:
    """Half a cosine up from `start` to 1 at the fraction `peak` of the run, another down to `final` (Smith 2018)."""
    progress = epoch / epochs
    if progress < peak:
        return _anneal(start, 1.0, progress / peak)
    return _anneal(1.0, final, (progress - peak) / (1 - peak))


def piecewise_linear(epoch: float, epochs: int, *, knots: Sequence[float], factors: Sequence[float]) -> float:  # noqa: ARG001
    """Straight lines through (knot, factor), flat before the first and after the last; a knot given twice is a jump.

    With few knots, the cyclic learning rate of fast ImageNet training (Wong et al. 2020).
    """
    after = bisect.bisect_right(knots, epoch)
    if after in (0, len(knots)):
        return factors[0] if after == 0 else factors[-1]
    progress = (epoch - knots[after - 1]) / (knots[after] - knots[after - 1])
    return factors[after - 1] + (factors[after] - factors[after - 1]) * progress


def warm_up(epoch: float, *, length: float, start: float) -> float:
    """Rise linearly from `start` to 1 over the first `length` epochs; multiplies any schedule."""
    return 1.0 if epoch >= length else start + (1.0 - start) * epoch / length


def _anneal(first: float, last: float, progress: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * progress)) / 2
