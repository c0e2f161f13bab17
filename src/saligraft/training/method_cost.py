"""What a training step costs with each method: passes through the network, and measured time against plain training."""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from saligraft import __version__
from saligraft.config.method_section import METHOD_NAMES, NO_METHOD, MethodSection
from saligraft.config.recipe import Recipe, make_recipe
from saligraft.data import Split, make_data_loader
from saligraft.data.threads import one_thread
from saligraft.networks import build_network
from saligraft.saliency.base import Passes
from saligraft.saliency.sources import SALIENCY_SOURCES
from saligraft.step import GraftingStep
from saligraft.strategies import ViewsStep, training_step
from saligraft.training.run_folder import machine_facts
from saligraft.training.setup import load_split, make_step

SHIPPED = Path(__file__).with_name("method_cost.json")
COMMAND = "saligraft list methods --measure"
NETWORK, BATCH_SIZE, SIZE = "wrn-10-1", 64, 32
ROUNDS, WARM_UP_ROUNDS = 9, 2
FEWEST_ROUNDS, SECONDS = 3, 12.0  # on a busy machine: no more rounds after so many seconds
VIEWS = 3  # of AugMix, all in one batch: as many images as in three passes


class Spread(NamedTuple):
    """Middle and quartiles of a step's time against the plain step of the same round."""

    median: float
    low: float
    high: float


class Costs(NamedTuple):
    """One measurement of all methods."""

    ratios: dict[str, Spread]
    facts: dict[str, Any]


def passes(section: MethodSection) -> Passes:
    """Forward and backward passes of one step over a batch, those for its saliency maps included."""
    step = training_step(nn.Identity(), section.build())
    trained = VIEWS if isinstance(step, ViewsStep) else 2 if isinstance(step, GraftingStep) else 1
    if section.saliency.name is None:
        return Passes(trained, trained)
    source = SALIENCY_SOURCES[section.saliency.name]
    # Maps of the originals that are trained on come from their own pass; else they are a pass of their own.
    extra = source.shared if isinstance(step, GraftingStep) else source.alone
    return Passes(trained + extra.forward, trained + extra.backward)


def measure_costs(rounds: int = ROUNDS, seconds: float = SECONDS) -> Costs:
    """Time whole steps (mixing, passes, optimiser) of all methods in turn, so that a machine's noise falls on all.

    CPU time on one thread, which other programs disturb least. Ends after `rounds` rounds, or `seconds` seconds if by
    then there were a few.
    """
    recipes = {name: make_recipe(_table(name)) for name in METHOD_NAMES}
    data = load_split(recipes[NO_METHOD], "train")
    with torch.random.fork_rng(), one_thread():
        steps = {name: _timed_step(recipe, data) for name, recipe in recipes.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        start = time.perf_counter()
        for number in range(WARM_UP_ROUNDS + rounds):
            if number >= WARM_UP_ROUNDS + FEWEST_ROUNDS and time.perf_counter() - start > seconds:
                break
            for name, step in steps.items():
                began = time.process_time()
                step()
                times[name].append(time.process_time() - began)
        plain = times[NO_METHOD][WARM_UP_ROUNDS:]
        ratios = {name: _spread(own[WARM_UP_ROUNDS:], plain) for name, own in times.items()}
        facts = _facts(len(plain), statistics.median(plain))
    return Costs(ratios, facts)


def load_costs(path: Path = SHIPPED) -> Costs:
    """A measurement that was saved; the one that comes with the package unless told otherwise."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return Costs({name: Spread(**spread) for name, spread in table["cost_against_plain"].items()}, table["facts"])


def save_costs(costs: Costs, path: Path) -> None:
    ratios = {name: {k: round(v, 3) for k, v in spread._asdict().items()} for name, spread in costs.ratios.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"facts": costs.facts, "cost_against_plain": ratios}
    path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


def describe(facts: Mapping[str, Any]) -> str:
    """What the numbers depend on, in one sentence."""
    machine = f"{facts['threads']} thread of {facts['device_name']} with {facts['cores']} cores, torch {facts['torch']}"
    return (
        f"median CPU time of {facts['rounds']} interleaved steps of {facts['network']}, batch {facts['batch_size']}, "
        f"{facts['size']} px, a plain step taking {facts['plain_milliseconds']:.0f} ms; {machine}; "
        f"by `{facts['command']}`, version {facts['version']}."
    )


def _table(name: str) -> dict[str, Any]:
    per_class = -(-BATCH_SIZE // 10)
    return {
        "data": {"name": "shapes", "options": {"size": SIZE, "per_class": per_class}},
        "network": {"name": NETWORK},
        "method": {"name": name},
        "training": {"batch_size": BATCH_SIZE},
    }


def _timed_step(recipe: Recipe, data: Split) -> Callable[[], None]:
    """One optimiser step on one batch, the same for all methods; each has a network of its own, equal at first."""
    torch.manual_seed(0)
    model = build_network(NETWORK, len(data.classes)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = make_step(recipe, model, data, torch.Generator().manual_seed(0))
    batch = next(iter(make_data_loader(data, batch_size=BATCH_SIZE, train=True)))

    def take() -> None:
        optimizer.zero_grad()
        step(batch.images, batch.labels).loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return take


def _spread(seconds: list[float], plain: list[float]) -> Spread:
    ratios = [own / other for own, other in zip(seconds, plain, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Spread(middle, low, high)


def _facts(rounds: int, plain_seconds: float) -> dict[str, Any]:
    machine = machine_facts(torch.device("cpu"), processes=1)
    wanted = ("device", "device_name", "cores", "threads", "python", "torch")
    return {
        "command": COMMAND,
        "version": _version(),
        "network": NETWORK,
        "batch_size": BATCH_SIZE,
        "size": SIZE,
        "rounds": rounds,
        "plain_milliseconds": round(1000 * plain_seconds, 1),
        **{name: machine[name] for name in wanted},
    }


def _version() -> str:
    """The version, and in a checkout of the sources the commit."""
    folder = Path(__file__).parent
    # Asked about this file: an installed package may lie inside somebody else's repository.
    known = ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name]
    commit = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        subprocess.run(known, check=True, capture_output=True, env=quiet)
        shown = subprocess.run(commit, check=True, capture_output=True, text=True, env=quiet).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{__version__}, commit {shown}"
