"""[training]: phases, parts of a batch, and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from saligraft.config.recipe_file import dump_recipe, load_recipe
from saligraft.config.training_section import TrainingSection
from saligraft.training import make_recipe

PHASES = [
    {"from_epoch": 0, "size": 128, "batch_size": 1024},
    {"from_epoch": 15, "size": 224, "batch_size": 448},
]


def test_phases_have_their_own_batch_sizes() -> None:
    assert TrainingSection(epochs=100, phases=PHASES).batch_sizes == (1024, 448)
    assert TrainingSection(batch_size=32).batch_sizes == (32,)


def test_phases_can_be_written_and_read_again(tmp_path: Any) -> None:
    recipe = make_recipe({"training": {"phases": PHASES}})
    (tmp_path / "r.toml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "r.toml") == recipe
    setting = "training.phases=[{ from_epoch = 0, size = 8, batch_size = 4 }]"
    assert load_recipe(tmp_path / "r.toml", [setting]).training.batch_sizes == (4,)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"epochs": "3"}, "valid integer"),
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"precision": "int8"}, "'fp32', 'bf16' or 'fp16'"),
        ({"ema_decay": 1.0}, "less than 1"),
        ({"on_nonfinite": "ignore"}, "'stop' or 'skip'"),
        ({"loss": "bce"}, "loss must be one of cross-entropy, softmax-bce"),
        ({"loss": "softmax-bce", "label_smoothing": 0.1}, "label_smoothing must be 0 for loss 'softmax-bce', got 0.1"),
        ({"accumulate": 3}, r"batch_size must be a multiple of accumulate \(3\), got 64"),
        ({"accumulate": 5, "phases": PHASES[:1]}, r"multiple of accumulate \(5\), got 1024"),
        ({"phases": PHASES[1:]}, r"from_epoch 0 first and then ascending, got \[15\]"),
        ({"phases": [*PHASES, PHASES[1]]}, r"ascending, got \[0, 15, 15\]"),
        ({"epochs": 15, "phases": PHASES}, r"before the last epoch \(15\), got from_epoch 15"),
        ({"phases": [{"from_epoch": 0, "sise": 8}]}, "unknown key 'sise'; valid: from_epoch, size, batch_size"),
    ],
)
def test_bad_settings_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingSection(**table)


def test_an_error_in_a_phase_takes_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^recipe: training\.phases\.0\.size must be greater than or equal to 1, got 0$"
    ):
        make_recipe({"training": {"phases": [{**PHASES[0], "size": 0}]}})


def test_methods_that_mix_between_layers_are_not_compiled() -> None:
    with pytest.raises(ValueError, match="compile must be false for method 'manifold-mixup', which mixes between"):
        make_recipe({"training": {"compile": True}, "method": {"name": "cutout+manifold-mixup"}})
