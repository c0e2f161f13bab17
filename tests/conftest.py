"""Shared settings: two test processes share two cores, and the core's tests run without the laboratory."""

import importlib.util
import os
import signal
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import settings

# Folders that test the laboratory; with the core alone installed there is nothing to test there.
LAB_FOLDERS = ["cli", "config", "data", "experiments", "io", "networks", "reports", "training"]
collect_ignore = [] if importlib.util.find_spec("accelerate") else LAB_FOLDERS
collect_ignore += [
    f"integrations/test_{name}.py"
    for name in ("timm", "lightning", "transformers")
    if importlib.util.find_spec(name) is None
]

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

if os.name == "posix":  # a shell's background jobs ignore Ctrl-C, and those of nohup SIGHUP, which tests send
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: the first call of a torch op may take long. In CI the same examples each time; elsewhere new ones.
settings.register_profile("saligraft", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.load_profile("saligraft")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def leave_no_process_group() -> Iterator[None]:
    """For frameworks that start a process group and set its variables: other tests must not find either."""
    variables = dict(os.environ)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.clear()
    os.environ.update(variables)
