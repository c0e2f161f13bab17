"""Value checks: on the CPU by default, everywhere on demand, never under compilation or on tensors without values."""

import pytest
import torch

import saligraft as sg
from saligraft import checks

NAN_MAPS = torch.full((2, 4, 4), float("nan"))


def test_validation_reaches_the_pure_functions_only_on_demand() -> None:
    assert not sg.salient_regions(NAN_MAPS).any()
    with sg.set_validation(True), pytest.raises(ValueError, match="saliency must be finite, got NaN or infinity"):
        sg.salient_regions(NAN_MAPS)
    assert not sg.salient_regions(NAN_MAPS).any()


def test_set_validation_works_as_a_statement() -> None:
    sg.set_validation(True)
    try:
        with pytest.raises(ValueError, match="saliency must be >= 0, got -1"):
            sg.importance(torch.full((1, 2, 2), -1.0), torch.ones(1, 2, 2))
    finally:
        sg.set_validation(False)
    sg.importance(torch.full((1, 2, 2), -1.0), torch.ones(1, 2, 2))


def test_meta_tensors_are_never_looked_at() -> None:
    assert checks.may_look(torch.ones(1))
    with sg.set_validation(True):
        assert not checks.may_look(torch.ones(1, device="meta"))


@pytest.mark.parametrize("value", [True, "4", None])
def test_numbers_must_be_numbers(value: object) -> None:
    with pytest.raises(TypeError, match="alpha must be a number"):
        checks.positive("alpha", value)
    with pytest.raises(TypeError, match="copies must be an int"):
        checks.whole_number("copies", value, least=1)


def test_probabilities_are_one_per_method_and_together_1() -> None:
    assert checks.probabilities(None, 4) == (0.25,) * 4
    assert checks.probabilities([1, 0], 2) == (1.0, 0.0)
    for value, message in (([0.5], "expected 2, got 1"), ([0.5, 0.6], "sum to 1, got 1.1"), ([-1, 2], "each of prob")):
        with pytest.raises(ValueError, match=message):
            checks.probabilities(value, 2)
    with pytest.raises(TypeError, match=r"probabilities must be a sequence of numbers, got 0\.5"):
        checks.probabilities(0.5, 2)


def test_without_autocast_switches_it_off_inside_and_back_on_whatever_happens() -> None:
    @checks.without_autocast
    def product(scale: float, matrix: torch.Tensor) -> torch.Tensor:
        if scale < 0:
            raise ZeroDivisionError
        return scale * (matrix @ matrix)

    matrix = torch.rand(3, 3)
    assert product(1, matrix.to("meta")).is_meta
    with torch.autocast("cpu", torch.float16), torch.autocast("cpu", torch.bfloat16):
        assert product(2, matrix).dtype == product(scale=2, matrix=matrix).dtype == torch.float32
        with pytest.raises(ZeroDivisionError):
            product(-1, matrix)
        assert (matrix @ matrix).dtype == torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert product(1, matrix).dtype == torch.float32
        assert product(1, matrix.to("meta")).is_meta


def test_text_that_no_file_can_hold_is_refused() -> None:
    checks.utf8("name", "日本 · é")
    with pytest.raises(ValueError, match=r"^name must be valid UTF-8, got 'caf\\udce9'$"):
        checks.utf8("name", "caf\udce9")


@pytest.mark.parametrize("value", [1e31, 10**31, 10**400])
def test_numbers_beyond_arithmetic_are_refused(value: float) -> None:
    for check in (checks.positive, checks.not_negative):
        with pytest.raises(ValueError, match=r"alpha must be between -1e\+30 and 1e\+30, got"):
            check("alpha", value)
    with pytest.raises(ValueError, match=r"each of mean must be between"):
        checks.numbers("mean", (0.5, -value))
    checks.positive("alpha", 1e30)
    checks.whole_number("size", 2**63 - 1, least=1)
    with pytest.raises(ValueError, match=r"size must be <= 7, got 8"):
        checks.whole_number("size", 8, least=1, most=7)
