"""The trainer: same recipe, same bits; every method learns; stopped runs resume; the caller's state is unchanged."""

import functools
import json
import math
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from saligraft import networks
from saligraft.config.method_section import METHOD_NAMES, MethodSection
from saligraft.data import Batch, InMemoryLoader
from saligraft.io.files import write_atomic
from saligraft.losses import mixed_cross_entropy
from saligraft.regularizers import DropBlock
from saligraft.step import GraftingStep
from saligraft.training import (
    Recipe,
    RunStopped,
    SilentReporter,
    checkpoint,
    dump_recipe,
    evaluate,
    load_recipe,
    make_recipe,
    run_folder,
    setup,
    train,
    trainer,
)
from saligraft.training.accelerator import make_accelerator
from saligraft.training.run_folder import RUN_FILES
from saligraft.training.state import Position
from saligraft.training.trainer import Trainer

COMPARED = ("recipe.toml", "metrics.jsonl", "result.json", "model.safetensors")
quiet_train = functools.partial(train, reporter=SilentReporter())


def with_method(table: dict[str, Any], name: str, **training: Any) -> Recipe:
    return make_recipe({**table, "method": {"name": name}, "training": {**table["training"], **training}})


def trainer_of(recipe: Recipe, epoch: int = 0, reporter: SilentReporter | None = None) -> Trainer:
    trainer = Trainer(recipe, make_accelerator(recipe), reporter=reporter)
    trainer.position = Position(epoch=epoch)
    return trainer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_one_recipe_gives_one_run_to_the_bit(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    table = {**tiny_table, "network": {"name": "wrn-10-1", "options": {"dropout": 0.3}}}
    recipe = with_method(table, "saliency-grafting", copies=2, warmup_epochs=1, label_smoothing=0.1)
    quiet_train(recipe, tmp_path / "a")
    torch.rand(5)
    quiet_train(load_recipe(tmp_path / "a" / "recipe.toml"), tmp_path / "b")
    for name in COMPARED:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    written = {file.name for file in (tmp_path / "a").iterdir()}
    assert written == {*RUN_FILES, "run.json", "checkpoints"} - {"report.html"}  # which callers write
    quiet_train(recipe.model_copy(update={"seed": 8}), tmp_path / "c")
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() != (tmp_path / "c" / "metrics.jsonl").read_bytes()


def test_the_result_tells_what_the_folder_holds(tiny_recipe: Recipe, tmp_path: Path) -> None:
    result = quiet_train(tiny_recipe, tmp_path / "a")
    assert json.loads((tmp_path / "a" / "result.json").read_text()) == result.summary
    lines = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert lines == [line._asdict() for line in result.metrics]
    assert result.summary["parameters"] == sum(p.numel() for p in result.network.parameters())
    assert all(line.images_per_second > 0 and line.cpu_seconds > 0 for line in result.timing)
    assert not result.network.training


def test_without_a_folder_nothing_is_written(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert quiet_train(tiny_recipe).folder is None
    assert list(tmp_path.iterdir()) == []


def test_the_caller_s_random_state_is_left_alone(tiny_recipe: Recipe) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quiet_train(tiny_recipe)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_every_method_lowers_the_loss_on_its_images_and_repeats_to_the_bit(
    method: str, tiny_table: dict[str, Any]
) -> None:
    table = {**tiny_table, "optimizer": {"lr": 0.02}, "schedule": {"name": "constant"}}
    metrics = quiet_train(with_method(table, method, epochs=5)).metrics
    assert metrics[-1].train_loss < metrics[0].train_loss
    assert quiet_train(with_method(table, method, epochs=1)).metrics == metrics[:1]


def test_warm_up_means_plain_training_at_first(tiny_table: dict[str, Any]) -> None:
    plain = quiet_train(with_method(tiny_table, "none")).metrics
    warmed = quiet_train(with_method(tiny_table, "cutmix", warmup_epochs=1)).metrics
    assert warmed[0] == plain[0]
    assert warmed[1] != plain[1]


@pytest.mark.parametrize("method", ["none", "saliency-grafting"])
@pytest.mark.parametrize("batch_size", [16, 40])  # in two steps the loss shows it, in one only the test does
def test_a_run_that_diverges_stops(method: str, batch_size: int, tiny_table: dict[str, Any], tmp_path: Path) -> None:
    recipe = with_method({**tiny_table, "optimizer": {"lr": 1e6}}, method, batch_size=batch_size)
    with pytest.raises(
        ValueError, match=r"training diverged in epoch 1 .*\((test )?loss (nan|inf)\): .*no checkpoint$"
    ):
        quiet_train(recipe, tmp_path / "a")
    assert load_recipe(tmp_path / "a" / "recipe.toml") == recipe
    assert not (tmp_path / "a" / "result.json").exists()


def test_a_method_that_does_not_fit_the_images_leaves_an_earlier_run_alone(
    tiny_table: dict[str, Any], tmp_path: Path
) -> None:
    quiet_train(with_method(tiny_table, "none", epochs=1), tmp_path / "a")
    before = contents(tmp_path / "a")
    table = {"name": "saliency-grafting", "options": {"grids": [4, 17]}}
    recipe = make_recipe({**tiny_table, "method": table})
    for folder in ("a", "b"):
        with pytest.raises(ValueError, match=r"grids must not exceed the image \(16, 16\), got 17"):
            quiet_train(recipe, tmp_path / folder, overwrite=True)
    assert contents(tmp_path / "a") == before
    assert not (tmp_path / "b").exists()


def test_an_earlier_run_is_kept_unless_asked(tiny_recipe: Recipe, tmp_path: Path) -> None:
    quiet_train(tiny_recipe, tmp_path)
    before = (tmp_path / "timing.jsonl").read_bytes()
    with pytest.raises(ValueError, match="is not empty"):
        quiet_train(tiny_recipe, tmp_path)
    assert (tmp_path / "timing.jsonl").read_bytes() == before
    quiet_train(tiny_recipe, tmp_path, overwrite=True)
    assert (tmp_path / "timing.jsonl").read_bytes() != before
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_weights_that_are_not_finite_stop_the_run_whatever_the_losses(tiny_recipe: Recipe) -> None:
    trainer = trainer_of(tiny_recipe, epoch=1)
    trainer.network.register_buffer("unused", torch.tensor([1.0, float("inf")]))
    with pytest.raises(ValueError, match=r"training diverged in epoch 2 \(weights inf\)"):
        trainer.run_epoch()


class Interrupting(SilentReporter):
    """Raises a signal in this process while a given batch of the run is trained on."""

    def __init__(self, batch: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.left, self.number = batch, number

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("method", "training"),
    [
        ("saliency-grafting", {"warmup_epochs": 1, "copies": 2}),
        ("cutmix", {"accumulate": 2, "ema_decay": 0.9}),
        ("manifold-mixup", {"channels_last": True}),
        ("none", {"precision": "bf16", "checkpoint_steps": 1}),
        ("saliency-grafting", {"passes": "remembered", "accumulate": 2}),
        ("saliency-grafting", {"passes": "mixed", "precision": "bf16"}),
        ("cutmix", {"originals": True, "copies": 2, "loss_combination": "sum"}),
    ],
)
def test_a_run_that_was_stopped_anywhere_ends_as_if_never_stopped(
    method: str, training: dict[str, Any], tiny_table: dict[str, Any], tmp_path: Path
) -> None:
    network = {"name": "wrn-10-1", "options": {"dropout": 0.2}}
    recipe = with_method({**tiny_table, "network": network}, method, batch_size=8, epochs=2, **training)
    quiet_train(recipe, tmp_path / "whole")
    for batch in (3, 4):  # in the first epoch of five batches, then in the second
        with pytest.raises(RunStopped) as stopped:
            train(recipe, tmp_path / "cut", resume=True, reporter=Interrupting(batch))
        assert stopped.value.exit_code == 143
        assert not (tmp_path / "cut" / "result.json").exists()
    quiet_train(recipe, tmp_path / "cut", resume=True)
    for name in COMPARED:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_optimisers_go_on_with_their_state(optimizer: str, tiny_table: dict[str, Any], tmp_path: Path) -> None:
    recipe = make_recipe({**tiny_table, "optimizer": {"name": optimizer, "lr": 0.01}})
    whole = quiet_train(recipe)
    with pytest.raises(RunStopped):
        train(recipe, tmp_path, reporter=Interrupting(3))
    assert quiet_train(recipe, tmp_path, resume=True).metrics == whole.metrics


def test_ctrl_c_counts_as_such(tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(tiny_recipe, tmp_path, reporter=Interrupting(1, signal.SIGINT))
    assert stopped.value.exit_code == 130
    assert stopped.value.folder == tmp_path


@pytest.mark.parametrize("moment", ["start", "close"])  # of the reporter: before the first epoch, and after the last
def test_a_signal_to_a_run_with_nothing_left_to_train_stops_what_comes_next(
    moment: str, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = quiet_train(tiny_recipe, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(SilentReporter, moment, lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(RunStopped, match="SIGINT, after the run was finished") as stopped:
            quiet_train(tiny_recipe, tmp_path, resume=True)
    assert (stopped.value.exit_code, stopped.value.folder) == (130, tmp_path)
    assert quiet_train(tiny_recipe, tmp_path, resume=True).metrics == before.metrics


def cut_off(folder: Path) -> None:
    for file in folder.glob("checkpoints/step-*/shared.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])


def cut_off_the_newest(folder: Path) -> None:
    (checkpoint.paths(folder)[-1] / "state.json").write_text("{")


@pytest.mark.parametrize(
    "damage", [lambda _: None, cut_off_the_newest, cut_off, lambda folder: shutil.rmtree(folder / "checkpoints")]
)
@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
def test_a_finished_run_is_complete_whatever_its_checkpoints(
    damage: Callable[[Path], None], tiny_table: dict[str, Any], tmp_path: Path
) -> None:
    recipe = with_method(tiny_table, "none", ema_decay=0.5)
    before = quiet_train(recipe, tmp_path)
    files = {name: (tmp_path / name).read_bytes() for name in COMPARED}
    damage(tmp_path)

    class Untrained(SilentReporter):
        def step(self) -> None:
            pytest.fail("a finished run must not be trained")

    again = train(recipe, tmp_path, resume=True, reporter=Untrained())
    assert {name: (tmp_path / name).read_bytes() for name in COMPARED} == files
    assert (again.metrics, again.timing, again.summary) == (before.metrics, before.timing, before.summary)
    weights = again.network.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in before.network.state_dict().items())


@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
@pytest.mark.parametrize("damage", [lambda _: None, cut_off_the_newest, cut_off])
def test_a_finished_run_s_files_stay_until_they_are_replaced(
    damage: Callable[[Path], None], tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """A kill as soon as the resumed run has the folder must not cost a finished one its model."""
    quiet_train(tiny_recipe, tmp_path)
    (tmp_path / "report.html").write_text("a page")
    files = {name: (tmp_path / name).read_bytes() for name in (*COMPARED, "report.html")}
    damage(tmp_path)

    class Killed(SilentReporter):
        def start(self, *_: Any) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):
        train(tiny_recipe, tmp_path, resume=True, reporter=Killed())
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


@pytest.mark.filterwarnings("ignore:checkpoint .* is damaged")
def test_a_finished_run_whose_files_do_not_agree_is_not_trained_again(tiny_recipe: Recipe, tmp_path: Path) -> None:
    quiet_train(tiny_recipe, tmp_path)
    whole = (tmp_path / "result.json").read_text()
    (tmp_path / "result.json").write_text(whole.replace('"final": ', '"final": 1'))
    files = {name: (tmp_path / name).read_bytes() for name in COMPARED}
    cut_off(tmp_path)
    with pytest.raises(ValueError, match=r"all 2 checkpoints of .* are damaged: start the run again with --overwrite"):
        quiet_train(tiny_recipe, tmp_path, resume=True)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match=r"is finished, but metrics.jsonl, result.json and .* do not agree"):
        quiet_train(tiny_recipe, tmp_path, resume=True)
    assert {name: (tmp_path / name).read_bytes() for name in COMPARED} == files


def test_metrics_are_kept_once_and_an_edit_of_them_is_noticed(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    recipe = with_method(tiny_table, "none", epochs=3, keep_checkpoints=3)
    whole = quiet_train(recipe)
    with pytest.raises(RunStopped):
        train(recipe, tmp_path, reporter=Interrupting(5))
    states = [(path / "state.json").read_text() for path in checkpoint.paths(tmp_path)]
    assert not any(str(line.train_loss) in state for line in whole.metrics for state in states)
    metrics = tmp_path / "metrics.jsonl"
    first, second = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(first + second.replace("e", "E", 1))
    with pytest.warns(UserWarning, match="metrics.jsonl does not begin with the 2 lines") as caught:
        assert quiet_train(recipe, tmp_path, resume=True).metrics == whole.metrics
    assert len(caught) == 2
    metrics.write_text(first.replace("e", "E", 1))
    (tmp_path / "result.json").unlink()
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match=r"all 3 checkpoints .* damaged"):
        quiet_train(recipe, tmp_path, resume=True)


def test_lines_after_the_checkpoint_are_written_again(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between a line of metrics and the checkpoint that counts it, or in the midst of the line after."""
    whole = quiet_train(tiny_recipe, tmp_path / "whole")

    def kill(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "prune", kill)  # just after the first
        with pytest.raises(MemoryError):
            quiet_train(tiny_recipe, tmp_path / "cut")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", kill)
        with pytest.raises(MemoryError):
            quiet_train(tiny_recipe, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "timing.jsonl"):
        assert '"epoch": 2' in (tmp_path / "cut" / name).read_text()
        with (tmp_path / "cut" / name).open("a") as file:
            file.write('{"epoch": 3, "lr"')
    assert quiet_train(tiny_recipe, tmp_path / "cut", resume=True).metrics == whole.metrics
    for name in COMPARED:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    timing = (tmp_path / "cut" / "timing.jsonl").read_text().splitlines()
    assert [json.loads(line).get("epoch") for line in timing] == [None, 1, 2]


def test_lost_times_do_not_keep_a_run_from_going_on(tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RunStopped):
        train(tiny_recipe, tmp_path, reporter=Interrupting(3))
    (tmp_path / "timing.jsonl").write_text('{"epoch": 1}\n[[\n{"epoch": "x", "seconds": 1}\n')
    result = quiet_train(tiny_recipe, tmp_path, resume=True)
    assert [line.epoch for line in result.metrics] == [1, 2]
    assert [line.epoch for line in result.timing] == [2]


def test_a_folder_without_proof_of_a_run_is_left_alone(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a user's own recipe.toml, folders were once deleted for their names."""
    for name in ("saligraft/__init__.py", "checkpoints/step-00000001/state.json", "model.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "recipe.toml").write_text(dump_recipe(tiny_recipe))
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = r"of a run, but checkpoints, model\.safetensors, recipe\.toml, saligraft: choose another$"
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(ValueError, match=words):
            quiet_train(tiny_recipe, ".", **options)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}, {}])
def test_a_run_killed_in_its_first_moments_may_be_begun_again(
    options: dict[str, bool], tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "write_atomic", written_then_killed)
        with pytest.raises(MemoryError):
            quiet_train(tiny_recipe, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    quiet_train(tiny_recipe, tmp_path, **options)


def written_then_killed(path: Path, text: str) -> None:
    write_atomic(path, text)
    raise MemoryError


def test_overwriting_deletes_a_run_and_nothing_of_the_user_s(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    tracked = with_method(tiny_table, "none", trackers=["tensorboard"])
    quiet_train(tracked, tmp_path)
    ours = {name for name in contents(tmp_path) if name.startswith(("saligraft/", "checkpoints/"))}
    assert len(ours) > 8
    mine = ("notes.txt", "saligraft/mine.py", "checkpoints/mine.pt", "checkpoints/step-00000002/why.txt")
    for name in mine:
        (tmp_path / name).write_text("mine")
    quiet_train(with_method(tiny_table, "none", epochs=1), tmp_path, overwrite=True)
    left = contents(tmp_path)
    assert {name: left[name] for name in mine} == dict.fromkeys(mine, b"mine")
    assert not any(name.startswith("saligraft/") for name in left.keys() - set(mine))
    assert json.loads(left["metrics.jsonl"])["epoch"] == 1


def test_only_the_same_recipe_is_resumed(tiny_table: dict[str, Any], tmp_path: Path) -> None:
    quiet_train(with_method(tiny_table, "none", epochs=1), tmp_path)
    with pytest.raises(ValueError, match=r"holds a run of another recipe: resume that one with saligraft train"):
        quiet_train(with_method(tiny_table, "none", epochs=2), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"resume needs a run folder"):
        quiet_train(with_method(tiny_table, "none"), resume=True)


def test_a_second_run_into_the_same_folder_is_refused(tiny_recipe: Recipe, tmp_path: Path) -> None:
    class Starting(SilentReporter):
        def close(self) -> None:
            for options in ({"overwrite": True}, {"resume": True}, {}):
                with pytest.raises(ValueError, match=r"is in use by another run \(process \d+\)"):
                    quiet_train(tiny_recipe, tmp_path / "a", **options)

    train(tiny_recipe, tmp_path / "a", reporter=Starting())
    assert not (tmp_path / "a" / ".lock").exists()


def test_a_broken_batch_names_itself_and_the_last_good_checkpoint(
    tiny_table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_batch(monkeypatch, 3)
    recipe = with_method(tiny_table, "none")
    with pytest.raises(ValueError, match=r"in epoch 2 at batch 2 of 2 \(loss nan\).*step-00000002$"):
        quiet_train(recipe, tmp_path / "a")
    monkeypatch.undo()
    assert quiet_train(recipe, tmp_path / "a", resume=True).metrics == quiet_train(recipe).metrics


def test_a_broken_batch_does_not_wait_for_the_epoch_s_end(
    tiny_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    class Counting(SilentReporter):
        def step(self) -> None:
            steps.append(1)

    monkeypatch.setattr(trainer, "READ_LOSSES_EVERY", 2)
    break_batch(monkeypatch, 1)
    with pytest.raises(ValueError, match=r"in epoch 1 at batch 2 of 5"):
        train(with_method(tiny_table, "none", batch_size=8), reporter=Counting())
    assert len(steps) == 2


def test_a_stop_where_a_checkpoint_was_just_written_writes_no_second(
    tiny_table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one of the same step would take the first one away before it has its name."""
    saved: list[int] = []
    save = checkpoint.save

    def counted(folder: Path, step: int, *rest: Any) -> Path:
        saved.append(step)
        return save(folder, step, *rest)

    monkeypatch.setattr(checkpoint, "save", counted)
    recipe = with_method(tiny_table, "none", batch_size=8, checkpoint_steps=2)
    with pytest.raises(RunStopped):
        train(recipe, tmp_path, reporter=Interrupting(2))
    assert saved == [2]


def test_a_broken_batch_is_skipped_if_the_recipe_says_so(
    tiny_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Noting(SilentReporter):
        def note(self, text: str) -> None:
            notes.append(text)

    break_batch(monkeypatch, 1)
    result = train(with_method(tiny_table, "none", on_nonfinite="skip"), reporter=Noting())
    assert notes == ["step 2 is skipped: its loss is not a finite number"]
    assert all(math.isfinite(line.train_loss) and math.isfinite(line.test_loss) for line in result.metrics)


def break_batch(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make one batch of the run hold a NaN."""
    whole = InMemoryLoader.batches

    def broken(self: InMemoryLoader, start: int = 0) -> Iterator[Batch]:
        for place, batch in enumerate(whole(self, start), start=start + self.epoch * len(self)):
            if self.train and place == number:
                batch.images[0] = math.nan
            yield batch

    monkeypatch.setattr(InMemoryLoader, "batches", broken)


def test_a_run_that_never_mixes_says_so_at_the_start(tiny_table: dict[str, Any]) -> None:
    recipe = with_method(tiny_table, "saliency-grafting", epochs=1, warmup_epochs=1)
    with pytest.warns(UserWarning, match=r"the run never mixes: .*method saliency-grafting is never applied") as caught:
        quiet_train(recipe)
    assert len(caught) == 1


def test_a_folder_that_weights_cannot_be_read_from_is_refused_at_once(tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the run folder's path must be valid UTF-8, got "):
        quiet_train(tiny_recipe, tmp_path / "caf\udce9")
    assert list(tmp_path.iterdir()) == []


def test_a_step_does_not_depend_on_the_epochs_before_it(tiny_table: dict[str, Any]) -> None:
    network = {"name": "wrn-10-1", "options": {"dropout": 0.5}}
    recipe = make_recipe({**tiny_table, "network": network, "method": {"name": "cutmix"}})
    direct, after_another = trainer_of(recipe, epoch=1), trainer_of(recipe)
    direct.step.steps_taken = direct.timeline.first_batch(1)
    weights = {name: value.clone() for name, value in after_another.network.state_dict().items()}
    after_another.train_epoch()
    after_another.network.load_state_dict(weights)
    after_another.optimizer.optimizer.state.clear()
    after_another.position = Position(epoch=1)
    assert direct.train_epoch() == after_another.train_epoch()


def test_processes_and_batches_draw_differently(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_recipe)
    draws = set()
    with torch.random.fork_rng():
        for rank in (0, 1):
            monkeypatch.setattr(type(trainer.accelerator), "process_index", property(lambda _, rank=rank: rank))
            for number in (0, 1):
                trainer.seed_batch(number)
                draws |= {float(torch.rand((), generator=trainer.generator)), float(torch.rand(()))}
    assert len(draws) == 8


class Watching(SilentReporter):
    """Calls a function after each batch."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.step = look  # type: ignore[method-assign]


def test_the_schedule_sets_the_learning_rate_of_every_step(tiny_table: dict[str, Any]) -> None:
    schedule = {"name": "step", "milestones": [0.5, 1], "decay": 0.5}
    seen: list[float] = []
    trainer = trainer_of(make_recipe({**tiny_table, "schedule": schedule}))
    trainer.reporter = Watching(lambda: seen.append(trainer.optimizer.param_groups[0]["lr"]))
    result = trainer.fit()
    assert seen == pytest.approx([0.05, 0.025, 0.0125, 0.0125])
    assert [line.lr for line in result.metrics] == pytest.approx([0.025, 0.0125])


def test_drop_block_grows_with_the_steps_to_its_full_rate(tiny_table: dict[str, Any]) -> None:
    options = {"drop_block": {"block_size": 3, "keep_probability": 0.8}}
    trainer = trainer_of(make_recipe({**tiny_table, "network": {"name": "wrn-10-1", "options": options}}))
    blocks = [module for module in trainer.network.modules() if isinstance(module, DropBlock)]
    rates: list[float] = []
    trainer.reporter = Watching(lambda: rates.append(float(blocks[-1].drop_rate)))
    trainer.fit()
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15])


def test_accumulated_parts_make_up_one_step_of_the_entire_batch(tiny_table: dict[str, Any]) -> None:
    """Plain training without batch norm sees the same gradient, in one part or in four."""
    losses = {}
    for parts in (1, 4):
        training = {**tiny_table["training"], "accumulate": parts}
        network = {"name": "torchvision:squeezenet1_1", "options": {"dropout": 0.0}}
        table = {**tiny_table, "data": {**tiny_table["data"], "options": {"size": 32, "per_class": 4}}}
        recipe = make_recipe({**table, "network": network, "training": training, "optimizer": {"lr": 0.001}})
        losses[parts] = [line.train_loss for line in quiet_train(recipe).metrics]
    assert losses[4] == pytest.approx(losses[1], rel=1e-4)


def test_data_network_methods_and_step_are_built_once(
    tiny_table: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"name": "saliency-grafting", "saliency": {"network": {"name": "wrn-10-2"}}}
    recipe = make_recipe({**tiny_table, "method": method})
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        build = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            calls[f"{owner.__name__.rpartition('.')[2]}.{name}"] += 1
            return build(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(setup.datasets, "load")
    count(setup, "build_network")
    count(networks, "build_network")  # by the section of the frozen network
    count(MethodSection, "build")
    count(setup, "training_step")
    quiet_train(recipe, tmp_path)
    once = ("setup.build_network", "networks.build_network", "MethodSection.build", "setup.training_step")
    assert calls == {"data.load": 2, **dict.fromkeys(once, 1)}


def test_averaged_weights_are_tested_and_returned(tiny_table: dict[str, Any]) -> None:
    trainer = trainer_of(with_method(tiny_table, "none", ema_decay=0.9))
    result = trainer.fit()
    weights, trained = result.network.state_dict(), trainer.network.state_dict()
    assert trainer.average is not None
    assert all(torch.equal(weights[name], value) for name, value in trainer.average.network.state_dict().items())
    assert not torch.equal(weights["stem.weight"], trained["stem.weight"])
    batches = setup.labelled_images(trainer.recipe, trainer.test_loader)
    scores = evaluate(trainer.average.network, batches, trainer.accelerator)
    assert (scores.test_loss, scores.top1_error) == (result.metrics[-1].test_loss, result.metrics[-1].top1_error)


def test_a_kept_last_batch_is_trained_on_and_counted(tiny_table: dict[str, Any]) -> None:
    """20 images in batches of 8: the third batch of 4 takes part, in the steps, the loss and the images per second."""
    data = {**tiny_table["data"], "options": {"size": 16, "per_class": 2}}
    table = {**tiny_table, "data": data, "training": {"epochs": 1, "batch_size": 8}}
    sizes: dict[bool, list[int]] = {}
    for keep_last in (False, True):
        trainer = trainer_of(make_recipe({**table, "data": {**data, "keep_last": keep_last}}))
        sizes[keep_last] = [len(batch.labels) for batch in trainer.timeline.stage(0).loader]
        trainer.run_epoch()
        assert trainer.step.steps_taken == len(sizes[keep_last])
        (timing,) = trainer.timing
        assert timing.images_per_second * timing.seconds == pytest.approx(sum(sizes[keep_last]))
    assert sizes == {False: [8, 8], True: [8, 8, 4]}


def test_a_kept_last_batch_is_refused_with_accumulation(tiny_table: dict[str, Any]) -> None:
    table = {**tiny_table, "data": {**tiny_table["data"], "keep_last": True}}
    with pytest.raises(ValueError, match=r"data\.keep_last must be false where training\.accumulate is above 1, got 2"):
        make_recipe({**table, "training": {"epochs": 1, "batch_size": 8, "accumulate": 2}})


def test_the_loss_of_the_recipe_is_trained(tiny_table: dict[str, Any]) -> None:
    """Binary cross-entropy of the softmax, averaged over classes, of the first plain batch, by torch's own."""
    trainer = trainer_of(make_recipe({**tiny_table, "training": {**tiny_table["training"], "loss": "softmax-bce"}}))
    batch = next(iter(trainer.timeline.stage(0).loader))
    out = trainer.step(batch.images, batch.labels)
    rows = F.one_hot(batch.labels, out.logits.shape[1]).float()
    torch.testing.assert_close(out.loss, F.binary_cross_entropy(out.logits.softmax(dim=1), rows))
    assert len(quiet_train(trainer.recipe).metrics) == trainer.recipe.training.epochs


def test_label_smoothing_copies_and_warm_up_reach_the_step(tiny_table: dict[str, Any]) -> None:
    recipe = with_method(tiny_table, "saliency-grafting", copies=3, label_smoothing=0.2, warmup_epochs=1)
    step = trainer_of(recipe).step
    assert isinstance(step, GraftingStep)
    assert (step.copies, step.warmup_steps) == (3, 2)
    assert step.criterion.func is mixed_cross_entropy
    assert step.criterion.keywords == {"label_smoothing": 0.2}


def test_passes_and_loss_weights_reach_the_step(tiny_table: dict[str, Any]) -> None:
    remembering = trainer_of(with_method(tiny_table, "saliency-grafting", passes="remembered")).step
    assert isinstance(remembering, GraftingStep)
    assert (remembering.passes, remembering.memory.samples) == ("remembered", 40)
    mixed = trainer_of(with_method(tiny_table, "saliency-grafting", originals=False)).step
    assert (mixed.passes, mixed.source.mode, mixed.loss_weights) == ("mixed", "current", (1.0,))
    both = trainer_of(with_method(tiny_table, "cutmix", originals=True, copies=2, loss_combination="sum")).step
    assert isinstance(both, GraftingStep)
    assert (both.passes, both.copies, both.loss_weights) == ("both", 2, (1.0, 1.0, 1.0))


def test_maps_of_image_files_are_remembered_whatever_the_number_of_workers(
    tiny_table: dict[str, Any], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(8):
            pixels = torch.randint(256, (20 + number, 30, 3), dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / name / f"{number}.png")
    tables = []
    for workers in (0, 2):
        data = {"name": f"folder:{tmp_path}", "options": {"size": 16}, "workers": workers}
        trainer = trainer_of(
            with_method({**tiny_table, "data": data}, "saliency-grafting", passes="remembered", batch_size=4)
        )
        trainer.fit()
        tables.append(trainer.step.memory.state_dict())
    assert tables[0]["known"].all()
    assert torch.equal(tables[0]["maps"], tables[1]["maps"])
