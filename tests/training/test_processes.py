"""One of several processes speaks."""

from pathlib import Path

import pytest
from torch import distributed

from saligraft.training.processes import leave_group


@pytest.mark.parametrize(("rank", "speaks"), [(None, True), ("0", True), ("1", False)])
def test_without_a_group_the_launcher_s_number_counts(
    rank: str | None, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rank is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", rank)
    assert leave_group() is speaks


def test_a_group_is_left(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", store=distributed.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    assert leave_group()
    assert not distributed.is_initialized()
