"""Precision, trackers and processes."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate.tracking
import pytest
from accelerate.utils import LoggerType
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import distributed

from saligraft.training import (
    EpochMetrics,
    Recipe,
    SilentReporter,
    accelerator,
    dump_recipe,
    evaluate_run,
    make_recipe,
    train,
)
from saligraft.training.accelerator import (
    OtherProcessError,
    leave_group,
    make_accelerator,
    shared_errors,
    sum_over_processes,
)


def test_runs_of_one_process_may_differ_in_precision() -> None:
    for precision, name in (("fp32", "no"), ("bf16", "bf16"), ("fp32", "no")):
        recipe = make_recipe({"training": {"precision": precision}})
        assert make_accelerator(recipe).mixed_precision == name


def test_one_process_sums_to_itself() -> None:
    assert sum_over_processes(make_accelerator(Recipe()), [1.5, 2]) == [1.5, 2]


@pytest.mark.parametrize(
    ("rank", "messages", "expected"),
    [
        (0, [None, None], None),
        (0, [None, "b"], OtherProcessError),
        (1, [None, "b"], OSError),
        (0, ["a", "b"], OSError),
        (1, ["a", "b"], OtherProcessError),
    ],
)
def test_an_error_of_one_process_ends_all_and_is_reported_by_the_first(
    rank: int, messages: list[str | None], expected: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str | None] = []

    def gather(own: list[str | None]) -> list[str | None]:
        sent.extend(own)
        return messages

    monkeypatch.setattr(accelerator, "gather_object", gather)
    first = next((message for message in messages if message), "")
    caught = contextlib.nullcontext() if expected is None else pytest.raises(expected, match=f"^{first}$")
    with caught, shared_errors(SimpleNamespace(num_processes=2, process_index=rank)):
        if messages[rank]:
            raise OSError(messages[rank])
    assert sent == [messages[rank]]


def test_a_batch_must_divide_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator.Accelerator, "num_processes", property(lambda _: 3))
    with pytest.raises(ValueError, match=r"batch_size must be a multiple of the number of processes \(3\), got 64"):
        make_accelerator(Recipe())


def test_a_part_of_a_batch_must_divide_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator.Accelerator, "num_processes", property(lambda _: 2))
    recipe = make_recipe({"training": {"batch_size": 6, "accumulate": 2}})
    with pytest.raises(ValueError, match=r"number of processes times training.accumulate \(4\), got 6"):
        make_accelerator(recipe)


def test_batch_norm_over_processes_needs_cuda_to_train_but_not_to_test() -> None:
    recipe = make_recipe({"training": {"sync_batch_norm": True}})
    with pytest.raises(ValueError, match=r"training\.sync_batch_norm must be false on cpu: it needs CUDA"):
        make_accelerator(recipe)
    assert make_accelerator(recipe, to_train=False).device.type == "cpu"


def test_fp16_is_refused_where_it_would_quietly_be_fp32() -> None:
    recipe = make_recipe({"training": {"precision": "fp16"}})
    with pytest.raises(ValueError, match=r"training\.precision must be fp32 or bf16 on cpu, got fp16"):
        make_accelerator(recipe)
    assert make_accelerator(recipe, to_train=False).device.type == "cpu"


def test_an_absent_tracker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe({"training": {"trackers": ["tensorbord"]}})
    with pytest.raises(ValueError, match=r"training.trackers must be one of .*; did you mean 'tensorboard'\?"):
        make_accelerator(recipe, track_in=tmp_path)
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", [])
    recipe = make_recipe({"training": {"trackers": ["wandb"]}})
    with pytest.raises(ValueError, match="'wandb' needs its package: pip install wandb"):
        make_accelerator(recipe, track_in=tmp_path)


def test_trackers_need_a_run_folder() -> None:
    with pytest.raises(ValueError, match="trackers need a run folder"):
        train(make_recipe({"training": {"trackers": ["tensorboard"]}}))


class Notebook(accelerate.tracking.GeneralTracker):
    """Stands in for TensorBoard, with the same rights and duties."""

    name = "tensorboard"
    requires_logging_directory = True
    written: list[Any] = []  # noqa: RUF012  (shared on purpose: Accelerate makes the instance)

    def __init__(self, run_name: str, logging_dir: str | None = None, **_: Any) -> None:
        super().__init__()
        self.written.append(("open", run_name, str(logging_dir)))

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.written.append(("settings", values))

    def log(self, values: dict[str, Any], step: int | None, **_: Any) -> None:
        self.written.append(("log", step, values))

    def finish(self) -> None:
        self.written.append(("close",))


def test_trackers_get_settings_and_every_epoch(
    tiny_table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", [LoggerType.TENSORBOARD])
    monkeypatch.setitem(accelerate.tracking.LOGGER_TYPE_TO_CLASS, "tensorboard", Notebook)
    monkeypatch.setattr(Notebook, "written", [])
    tiny_table["training"]["trackers"] = ["tensorboard"]
    result = train(make_recipe(tiny_table), tmp_path / "run", reporter=SilentReporter())
    opened, settings, first, second, closed = Notebook.written
    assert opened == ("open", "saligraft", str(tmp_path / "run"))
    assert settings[1]["training.epochs"] == 2
    assert settings[1]["data.options.size"] == 16
    assert [first, second] == [("log", line.epoch, line._asdict()) for line in result.metrics]
    assert closed == ("close",)


LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    # --multi_gpu, on the CPU too: --cpu alone starts one process, whatever --num_processes says
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"],
}


def launch(launcher: str, folder: Path, *arguments: str) -> str:
    """Train by a launcher's two processes; returns what they wrote to stderr."""
    command = [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "saligraft", "train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_launched_processes_are_one_run(tiny_recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(dump_recipe(tiny_recipe))
    settings = ["r.toml", "--set", "method.name=saliency-grafting", "--set", "training.ema_decay=0.5"]
    assert "Warning" not in launch("torchrun", tmp_path, *settings, "--out", "run")
    launch("accelerate", tmp_path, *settings, "--out", "same")
    for name in ("metrics.jsonl", "result.json", "model.safetensors"):
        assert (tmp_path / "same" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    machine = json.loads((tmp_path / "run" / "timing.jsonl").read_text().splitlines()[0])["machine"]
    assert machine["processes"] == 2
    # One process counts the same errors on the saved network: each test image was counted once, by that network.
    scores = evaluate_run(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert scores.top1_error == pytest.approx(result["top1_error"]["final"])
    assert scores.test_loss == pytest.approx(result["test_loss"], rel=1e-5)


def test_tensorboard_files_hold_every_metric(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    tiny_table["training"]["trackers"] = ["tensorboard"]
    for _ in range(2):  # overwriting takes the first run's events away
        result = train(make_recipe(tiny_table), tmp_path / "run", reporter=SilentReporter(), overwrite=True)
    (events,) = (tmp_path / "run" / "saligraft").glob("events.*")
    reader = EventAccumulator(str(events))
    reader.Reload()
    for name in EpochMetrics._fields:
        read = [(event.step, event.value) for event in reader.Scalars(name)]
        assert read == [(line.epoch, pytest.approx(getattr(line, name), rel=1e-6)) for line in result.metrics]


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
