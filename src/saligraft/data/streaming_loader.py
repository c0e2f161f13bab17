"""Batches of samples that worker processes read and augment, while the network trains on those before.

No stream of randomness is carried: the order is keyed by (seed, epoch), each sample's view by (seed, epoch, sample
index), so any number of workers, and a resumed run, meet the same batches.
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
from saligraft.data.batches import Batch, Loader, normalisation
from saligraft.data.keyed_draws import key
from saligraft.data.order import Order
from saligraft.data.streamed import StreamedData


class Request(NamedTuple):
    """The samples of one batch, and the key of their epoch's augmentation; None asks for test views."""

    samples: Tensor
    augmentation: int | None


class Reader(Dataset[Any]):
    """Reads whole batches, in a worker or in the loader's own process."""

    def __init__(self, data: StreamedData, flip: bool) -> None:
        self.data, self.flip = data, flip

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | Exception:
        """Images (B,C,H,W) uint8 and geometry (B,G), or the error that a damaged file caused.

        The error is handed over as a value: raised in a worker it would come out as the text of a traceback.
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
    """Iterate over one split on disk, dealt out as `Order` says; `batch_size` and `workers` are per rank.

    Training samples are augmented as their data set says and mirrored at random if `flip`; test samples are cut out as
    their data set says. Workers stay from epoch to epoch; with 0 of them the loader's own process reads.
    One iteration at a time: a new one ends the one before.
    """

    def __init__(
        self,
        data: StreamedData,
        *,
        batch_size: int,
        train: bool,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
        flip: bool = True,
        workers: int = 0,
    ) -> None:
        whole_number("workers", workers, least=0)
        count = len(data)
        order = Order(count=count, batch_size=batch_size, train=train, seed=seed, rank=rank, world_size=world_size)
        super().__init__(order, device)
        self.workers = workers
        self._labels = data.labels
        self._scale, self._shift = normalisation(data.mean, data.std, self.device)
        self._reader = Reader(data, flip)
        self._pool: _Pool | None = None

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """The epoch's batches from number `start` on; a damaged file is a ValueError, a dead worker an OSError."""
        requests = self._requests(start)
        for request, answer in zip(requests, self._answers(requests), strict=True):
            if isinstance(answer, Exception):
                raise answer
            images, geometry = (part.to(self.device, non_blocking=True) for part in answer)
            labels, index = (part.to(self.device) for part in (self._labels[request.samples], request.samples))
            yield Batch(images.float() * self._scale + self._shift, labels, index, geometry)

    def close(self) -> None:
        """End the workers; a later iteration starts new ones."""
        self._pool = None

    def _requests(self, start: int) -> list[Request]:
        augmentation = self.order.augmentation(self.epoch) if self.order.train else None
        order = self.order.epoch(self.epoch)[start * self.batch_size :]
        firsts = range(0, len(order), self.batch_size)
        return [Request(order[first : first + self.batch_size], augmentation) for first in firsts]

    def _answers(self, requests: list[Request]) -> Iterator[Any]:
        if not self.workers:
            yield from map(self._reader.__getitem__, requests)
            return
        self._pool = self._pool or _Pool(self._reader, self.workers, pin_memory=self.device.type == "cuda")
        try:
            yield from self._pool.answers(requests)
        except ChildProcessError:
            self._pool = None  # the next iteration starts with workers of its own
            raise


class _Pool:
    """Worker processes that stay, and answer one list of requests after another in order."""

    def __init__(self, reader: Reader, workers: int, pin_memory: bool) -> None:
        self._asked = _Asked()
        self._loader = DataLoader(
            reader,
            batch_size=None,
            sampler=self._asked,
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=_settle_worker,
            persistent_workers=True,
            generator=torch.Generator(),  # of its own, or each epoch would advance torch's global one
        )
        self._workers: list[multiprocessing.process.BaseProcess] = []
        self._turn = 0

    def answers(self, requests: list[Request]) -> Iterator[Any]:
        self._turn = turn = self._turn + 1
        iterator = self._watched(lambda: self._start(requests))
        for _ in requests:
            if turn != self._turn:
                raise RuntimeError("an iteration of a loader with workers cannot go on after a new one began")
            yield self._watched(lambda: next(iterator))

    def _start(self, requests: list[Request]) -> Iterator[Any]:
        self._asked.requests = requests
        before = signal.getsignal(signal.SIGCHLD)
        iterator = iter(self._loader)
        # torch would now raise a worker's death in the midst of whatever runs, a checkpoint's writing included.
        if before is not None and signal.getsignal(signal.SIGCHLD) is not before:
            signal.signal(signal.SIGCHLD, before)
        self._workers = iterator._workers  # type: ignore[attr-defined]  # torch names them nowhere in public
        return iterator

    def _watched(self, act: Callable[[], Any]) -> Any:
        """Do what needs live workers; if one has died, or dies meanwhile, name it."""
        self._check_workers()
        try:
            return act()
        except RuntimeError:  # torch's word for a dead worker
            self._check_workers()
            raise

    def _check_workers(self) -> None:
        for number, worker in enumerate(self._workers):
            if not worker.is_alive():
                raise ChildProcessError(f"data worker {number} (pid {worker.pid}) died: {_cause(worker.exitcode)}")


class _Asked:
    """The sampler: what is asked for at the time it is iterated over."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)


def _as_it_is(answer: Any) -> Any:
    return answer


def _settle_worker(_number: int) -> None:
    """Leave signals meant for the run, such as Ctrl-C, to the process that trains; torch ends workers with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hints = {"SIGKILL": ", as the system does when memory runs out", "SIGBUS": ", as when shared memory runs out"}
    return f"killed by {name}{hints.get(name, '')}"
