"""How many threads torch computes with, and which thread uses a network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread, then on as many as before: small operations gain nothing from more, and wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


_users: dict[nn.Module, int] = {}  # the thread that uses each module
_lock = threading.Lock()


@contextmanager
def exclusive_use(model: nn.Module) -> Iterator[None]:
    """Keep other threads from using the model inside: what hooks it or switches its mode would spoil their passes.

    The second thread gets a RuntimeError; the same thread may enter again. Every module is claimed, so that a model,
    what DDP or torch.compile wraps around it, and another model that shares modules with it count as one.
    """
    thread = threading.get_ident()
    claimed: list[nn.Module] = []
    try:
        if _users.get(model) != thread:
            with _lock:
                parts = list(model.modules())
                if any(_users.get(part, thread) != thread for part in parts):
                    raise RuntimeError(
                        f"model must be used by one thread at a time, got a {type(model).__name__} that another thread "
                        "is using: give each thread a copy (copy.deepcopy) or a lock"
                    )
                claimed = [part for part in parts if part not in _users]
                _users.update(dict.fromkeys(claimed, thread))
        yield
    finally:
        for part in claimed:
            del _users[part]
