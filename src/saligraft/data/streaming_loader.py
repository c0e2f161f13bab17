"""Batches of samples that worker processes read and augment while the network trains.

No random state is carried: the order is keyed by (seed, epoch), each sample's view by (seed, epoch, sample index), so
batches are the same for any number of workers and for a resumed run.
Shapes: B batch, C channels, H W pixels, G numbers of a sample's geometry.
"""

import multiprocessing.process
import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from saligraft.checks import whole_number
from saligraft.data.dataset import StreamedData
from saligraft.data.keyed_draws import key
from saligraft.data.loader import Batch, Loader
from saligraft.draws import to_device


class Request(NamedTuple):
    """The samples of one batch.

    Args:
        samples: Their indices (B,).
        augmentation: Key of their epoch's augmentation; None for test views.
    """

    samples: Tensor
    augmentation: int | None


class Reader(Dataset[Any]):
    """Reads batches, in a worker or in the loader's own process.

    Args:
        data: The split.
        flip: Whether to flip half of the training samples.
    """

    def __init__(self, data: StreamedData, flip: bool) -> None:
        self.data, self.flip = data, flip

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | Exception:
        """Read one batch.

        Args:
            request: Samples to load.

        Returns:
            Images (B,C,H,W) uint8 and geometry (B,G), or the error caused by a damaged file: raised in a worker it
            would arrive as the text of a traceback.
        """
        try:
            samples = [self._sample(int(index), request.augmentation) for index in request.samples]
        except (ValueError, OSError) as error:
            return error
        return torch.stack([image for image, _ in samples]), torch.tensor([geometry for _, geometry in samples])

    def _sample(self, index: int, augmentation: int | None) -> tuple[Tensor, tuple[int, ...]]:
        draws = None if augmentation is None else random.Random(key(augmentation, index))
        image, geometry = self.data.sample(index, draws)
        flipped = self.flip and draws is not None and draws.random() < 0.5
        return image.flip(-1) if flipped else image, (*geometry, int(flipped))


class StreamingLoader(Loader):
    """Batches of a split on disk, read by worker processes.

    The data set defines the crops and augmentation; training samples are also flipped at random if `flip`. Workers stay
    alive between epochs. Only one iteration at a time: a new one ends the previous.

    Args:
        data: The split.
        flip: Whether to flip half of the training samples.
        workers: Processes per rank; 0 reads in the training process.
        options: See `Loader`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from saligraft.data import StreamingLoader, load
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
        ...         (Path(root) / name).parent.mkdir(parents=True)
        ...         Image.new("RGB", (40, 30)).save(Path(root) / name)
        ...     loader = StreamingLoader(load(f"folder:{root}", size=16), batch_size=2, train=True)
        ...     next(iter(loader)).images.shape
        torch.Size([2, 3, 16, 16])
    """

    def __init__(self, data: StreamedData, *, flip: bool = True, workers: int = 0, **options: Any) -> None:
        whole_number("workers", workers, least=0)
        super().__init__(data, **options)
        self.workers = workers
        self._labels = data.labels
        self._reader = Reader(data, flip)
        self._requests: list[Request] = []  # of the current iteration: the pool's sampler iterates over it
        self._iteration = 0
        self._pool: DataLoader[Any] | None = None
        self._processes: list[multiprocessing.process.BaseProcess] = []

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Iterate over the epoch's batches.

        Args:
            start: Number of batches to skip, at no cost.

        Raises:
            ValueError: A file, which the message names, is damaged.
            OSError: A worker died.
        """
        augmentation = self.augmentation if self.train else None
        order = self.order[start * self.batch_size :]
        requests = [Request(samples, augmentation) for samples in torch.split(order, self.batch_size) if len(samples)]
        for request, answer in zip(requests, self._answers(requests), strict=True):
            if isinstance(answer, Exception):
                raise answer
            parts = (*answer, self._labels[request.samples], request.samples)
            images, geometry, labels, index = (to_device(part, self.device) for part in parts)
            yield Batch(images.float() * self._scale + self._shift, labels, index, geometry)

    def close(self) -> None:
        self._pool, self._processes = None, []

    def _answers(self, requests: list[Request]) -> Iterator[Any]:
        if not self.workers:
            yield from map(self._reader.__getitem__, requests)
            return
        self._iteration = current = self._iteration + 1
        self._requests[:] = requests
        iterator = self._with_live_workers(self._start)
        for _ in requests:
            if current != self._iteration:
                raise RuntimeError("an iteration of a loader with workers cannot continue after a new one has started")
            yield self._with_live_workers(lambda: next(iterator))

    def _start(self) -> Iterator[Any]:
        if self._pool is None:
            self._pool = DataLoader(
                self._reader,
                batch_size=None,
                sampler=self._requests,
                num_workers=self.workers,
                pin_memory=self.device.type == "cuda",
                worker_init_fn=_set_up_worker,
                persistent_workers=True,
                generator=torch.Generator(),  # otherwise each epoch would advance torch's global one
            )
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None  # not on Windows
        iterator = iter(self._pool)
        # Otherwise torch raises an error in the middle of other code when a worker dies, even during a checkpoint.
        if handler is not None and signal.getsignal(signal.SIGCHLD) is not handler:
            signal.signal(signal.SIGCHLD, handler)
        self._processes = iterator._workers  # type: ignore[attr-defined]  # torch has no public name for them
        return iterator

    def _with_live_workers(self, act: Callable[[], Any]) -> Any:
        """Call a function that needs live workers; if one is dead or dies meanwhile, name it in the error."""
        self._check_workers()
        try:
            return act()
        except RuntimeError:  # torch's error for a dead worker
            self._check_workers()
            raise

    def _check_workers(self) -> None:
        for number, worker in enumerate(self._processes):
            if not worker.is_alive():
                self.close()  # the next iteration starts new workers
                raise ChildProcessError(f"data worker {number} (pid {worker.pid}) died: {_cause(worker.exitcode)}")


def _set_up_worker(_number: int) -> None:
    """Leave signals such as Ctrl-C to the training process; torch ends the workers with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):  # not on Windows
        os.setpgid(0, 0)


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hints = {"SIGKILL": ", as the system does when memory runs out", "SIGBUS": ", as when shared memory runs out"}
    return f"killed by {name}{hints.get(name, '')}"
