"""Many file names in little memory."""

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import torch
from torch import Tensor


class FileNames:
    """A sequence of names in one block of bytes.

    A million strings would be copied into every worker, page by page, as it counts the references to them.
    """

    def __init__(self, names: Iterable[str | PurePath]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._text = b"".join(encoded)
        self._ends = torch.tensor([0, *itertools.accumulate(map(len, encoded))])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"index must lie in [0, {len(self)}), got {index}")
        return os.fsdecode(self._text[self._ends[index] : self._ends[index + 1]])

    def __iter__(self) -> Iterator[str]:
        """All names in order, faster than one by one."""
        ends = self._ends.tolist()
        return (os.fsdecode(self._text[start:end]) for start, end in itertools.pairwise(ends))

    def subset(self, indices: Tensor) -> "FileNames":
        """These names alone, in this order."""
        return FileNames(self[int(index)] for index in indices)
