"""A few samples of each class, for the tables on data scarcity (paper §5.3)."""

from typing import TypeVar

import torch

from saligraft.checks import whole_number
from saligraft.data.dataset import Split
from saligraft.data.keyed_draws import key

Data = TypeVar("Data", bound=Split)


def per_class_subset(data: Data, count: int, seed: int = 0) -> Data:
    """Draw the same number of samples of each class, kept in the order of the data set.

    Subsets are nested: the samples for 50 are among those for 100. Each class has its own random stream, so its samples
    do not depend on other classes.

    Args:
        data: The split to draw from.
        count: Samples per class.
        seed: Seed of the choice.

    Returns:
        A split of the same kind.
    """
    whole_number("per_class_subset", count, least=1)
    chosen = []
    for label, name in enumerate(data.classes):
        members = (data.labels == label).nonzero().flatten()
        if len(members) < count:
            raise ValueError(
                f"per_class_subset must be <= the samples of each class, got {count}, but {data.name} has "
                f"{len(members)} of {name!r}"
            )
        shuffled = torch.randperm(len(members), generator=torch.Generator().manual_seed(key(seed, label)))
        chosen.append(members[shuffled[:count]])
    return data.subset(torch.cat(chosen).sort().values)
