"""A few samples of each class, for the tables on data scarcity (paper §5.3), or a few classes."""

from dataclasses import replace
from typing import TypeVar

import torch

from saligraft.checks import whole_number
from saligraft.data.dataset import Split
from saligraft.data.keyed_draws import key

Data = TypeVar("Data", bound=Split)


def per_class_subset(data: Data, count: int | None, seed: int = 0, *, skip: int = 0) -> Data:
    """Draw the same number of samples of each class, kept in the order of the data set.

    Subsets are nested: the samples for 50 are among those for 100. Each class has its own random stream, so its samples
    do not depend on other classes.

    Args:
        data: The split to draw from.
        count: Samples per class; None for all that are left.
        seed: Seed of the choice.
        skip: Samples per class to leave out first: those of the subset of this size.

    Returns:
        A split of the same kind.
    """
    if count is not None:
        whole_number("per_class_subset", count, least=1)
    needed = skip + (1 if count is None else count)
    chosen = []
    for label, name in enumerate(data.classes):
        members = (data.labels == label).nonzero().flatten()
        if len(members) < needed:
            reason = f" beside {skip} to train on" if skip else ""
            raise ValueError(
                f"per_class_subset must be <= the samples of each class, got {needed - skip}{reason}, but {data.name} "
                f"has {len(members)} of {name!r}"
            )
        shuffled = torch.randperm(len(members), generator=torch.Generator().manual_seed(key(seed, label)))
        chosen.append(members[shuffled[skip:][:count]])
    return data.subset(torch.cat(chosen).sort().values)


def first_classes(data: Data, count: int) -> Data:
    """Select the samples of the first classes.

    Args:
        data: The split to select from.
        count: Number of classes.

    Returns:
        A split of the same kind, with those classes alone.
    """
    if count > data.num_classes:
        raise ValueError(f"classes must be <= the classes of {data.name} ({data.num_classes}), got {count}")
    chosen = data.subset((data.labels < count).nonzero().flatten())
    return replace(chosen, classes=data.classes[:count])
