"""One table for terminal and page."""

import io

import pytest
from rich.console import Console
from tests.reports.pages import Page, part

from saligraft.reports.tables import ResultTable, lowest, terminal_table

TABLE = ResultTable(
    columns=("Method", "Error", "Cost"),
    rows=(("Plain", "31.2 ± 0.6", "1.00×"), ("Graft & <co>", "26.0 ± 0.4", "1.98×")),
    notes=("Over 3 seeds.",),
    best=frozenset({(1, 1)}),
)


def test_terminal_and_page_show_every_cell() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal_table(TABLE))
    terminal, page = console.export_text(), Page(part("table", TABLE)).text
    for cell in (*TABLE.columns, *(cell for row in TABLE.rows for cell in row), "Over 3 seeds."):
        assert cell in terminal
        assert cell in page


def test_the_best_cell_is_bold() -> None:
    html = part("table", TABLE)
    assert html.count("<strong>") == 1
    assert "<strong>26.0 ± 0.4</strong>" in html


def test_square_brackets_are_text_in_the_terminal() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(terminal_table(ResultTable(columns=("a",), rows=(("[bold]x",),))))
    assert "[bold]x" in console.export_text()


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0, 1.0, 2.0], {1}), ([1.0, 1.0], {0, 1}), ([5.0], set()), ([], set())],
)
def test_lowest(values: list[float], expected: set[int]) -> None:
    assert lowest(values) == expected


def test_a_ragged_row_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        ResultTable(columns=("a", "b"), rows=(("1",),))
