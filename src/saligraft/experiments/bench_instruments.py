"""Instruments of the benchmark: interleaved times, exact counts of operations, exact peaks of memory, facts."""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import saligraft
from saligraft.methods import REGISTRY

WARM_UP_ROUNDS, FEWEST_ROUNDS = 2, 3
MOST_OPERATIONS = {"saliency-grafting": 45, "mixup": 20, "cutmix": 20}  # targets of `operations_of`
LIBRARIES = (
    "torch",
    "torchvision",
    "kornia",
    "timm",
    "opencv-contrib-python-headless",
    "scipy",
    "PyMaxflow",
    "gco-wrapper",
)


def time_in_turn(
    contenders: Mapping[str, Callable[[], object]], rounds: int, seconds: float = float("inf")
) -> dict[str, list[float]]:
    """Time every contender once in each round, so that the noise of a shared machine falls on all alike.

    On one thread the time is the processor's, which neighbours do not prolong; on several it is the wall clock's.

    Args:
        contenders: What to time, by name.
        rounds: At most this many, after two to warm up.
        seconds: No further round after this time, once there are three.

    Returns:
        Seconds of each contender in each round.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    for number in range(WARM_UP_ROUNDS + rounds):
        if number >= WARM_UP_ROUNDS + FEWEST_ROUNDS and time.perf_counter() - start > seconds:
            break
        for name, run in contenders.items():
            before = clock()
            run()
            times[name].append(clock() - before)
    return {name: own[WARM_UP_ROUNDS:] for name, own in times.items()}


class _OperationCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def count_operations(run: Callable[[], object]) -> int:
    """Count the torch operations that a call dispatches, views not counted: on a GPU each is a kernel launch or more.

    Args:
        run: The call.

    Example:
        >>> x = torch.ones(2, 3)
        >>> count_operations(lambda: (x + 1).T.exp())
        2
    """
    with _OperationCounter() as counter:
        run()
    return int(counter.count)


def operations_of(method: str) -> int:
    """Count the operations of one `apply` of a batch mixer with its defaults, at most over its grids.

    Args:
        method: Its name in the registry.
    """
    images, labels = torch.rand(8, 3, 32, 32), torch.randint(10, (8,))
    mixer, saliency = REGISTRY[method].method(), torch.rand(8, 8, 8)
    mixers = [type(mixer)(grids=(grid,)) for grid in mixer.grids] if hasattr(mixer, "grids") else [mixer]
    drawn = [(each, each.draw(images, generator=torch.Generator().manual_seed(0))) for each in mixers]
    return max(count_operations(lambda e=e, d=d: e.apply(images, labels, saliency, d)) for e, d in drawn)  # type: ignore[misc]


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the bytes of storages that operations return, from their creation until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0, 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        before = {self._key(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and self._key(leaf) not in before:
                self._add(leaf.untyped_storage())
        return result

    @staticmethod
    def _key(tensor: Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def freed(_: object) -> None:
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_bytes(run: Callable[[], object]) -> int:
    """Measure the most bytes of new tensors that live at once during a call, its results included.

    Exact for all that operations return; what a kernel allocates for itself is not seen.

    Args:
        run: The call.

    Example:
        >>> x = torch.ones(1000)
        >>> peak_bytes(lambda: (x + 1) * 2)
        8000
    """
    with _LiveStorages() as storages:
        result = run()
        del result
    return int(storages.peak)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute on this many threads inside, OpenCV too.

    Args:
        count: Number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    opencv = importlib.import_module("cv2") if installed("cv2") else None
    opencv_before = opencv.getNumThreads() if opencv else 0
    if opencv:
        opencv.setNumThreads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if opencv:
            opencv.setNumThreads(opencv_before)


def installed(module: str) -> bool:
    """Whether a module can be imported.

    Args:
        module: Its name.
    """
    return importlib.util.find_spec(module) is not None


def facts() -> dict[str, Any]:
    """Describe what times depend on: commit, machine and its load before, versions and threads.

    Returns:
        Values for JSON.
    """
    return {
        "commit": _commit(),
        "processor": _processor(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "versions": {"saligraft": saligraft.__version__, "python": platform.python_version()} | _versions(),
    }


def _versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    """The commit of the sources, if they lie in a repository; "+" marks changes since."""
    folder = Path(saligraft.__file__).parent
    try:
        git = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        tracked = subprocess.run(["git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py"],
                                 capture_output=True, check=False)  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return git.stdout.strip() if tracked.returncode == 0 else "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()
