"""Two processes that share a gloo process group."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed


def run_in_two(function: Callable[[int, Path], None], folder: Path) -> None:
    """Call `function(rank, folder)` in two processes, launched as torchrun does.

    Args:
        function: Function of a module.
        folder: Folder for what they write.
    """
    torch.multiprocessing.spawn(_run, args=(function, folder), nprocs=2)


def _run(rank: int, function: Callable[[int, Path], None], folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    function(rank, folder)
    distributed.barrier()  # a rank that leaves first may break the other's connection
    os._exit(0)  # as `saligraft.cli.main` does
