"""One table for terminal and page."""

import io

import pytest
from rich.console import Console
from tests.reports.pages import Page, part

from saligraft.reports.tables import ResultTable, print_table

TABLE = ResultTable(
    columns=("Method", "Error", "Cost"),
    rows=(("Plain", "31.2 ± 0.6", "1.00×"), ("Graft & <co>", "26.0 ± 0.4", "1.98×")),
    notes=("Over 3 seeds.",),
    best=frozenset({(1, 1)}),
)


def test_terminal_and_page_show_every_cell() -> None:
    console = Console(width=100, record=True, force_terminal=True, file=io.StringIO())
    print_table(console, TABLE)
    terminal, page = console.export_text(), Page(part("table", TABLE)).text
    for cell in (*TABLE.columns, *(cell for row in TABLE.rows for cell in row), "Over 3 seeds."):
        assert cell in terminal
        assert cell in page


@pytest.mark.parametrize(("terminal", "line"), [(True, "Plain         31.2 ± 0.6"), (False, "| Plain | 31.2 ± 0.6 |")])
def test_a_file_or_pipe_receives_markdown(terminal: bool, line: str) -> None:
    console = Console(width=100, force_terminal=terminal, color_system=None, file=io.StringIO())
    print_table(console, TABLE)
    assert line in console.file.getvalue()


def test_a_narrow_terminal_wraps_cells_and_loses_nothing() -> None:
    console = Console(width=24, record=True, force_terminal=True, file=io.StringIO())
    print_table(console, TABLE)
    words = console.export_text().split()
    assert not any("…" in word for word in words)
    assert {"Plain", "31.2", "0.6", "1.00×", "26.0", "0.4", "1.98×"} <= set(words)


def test_the_best_cell_is_bold() -> None:
    html = part("table", TABLE)
    assert html.count("<strong>") == 1
    assert "<strong>26.0\u00a0±\u00a00.4</strong>" in html


def test_square_brackets_are_text_in_the_terminal() -> None:
    console = Console(width=60, record=True, force_terminal=True, file=io.StringIO())
    print_table(console, ResultTable(columns=("a",), rows=(("[bold]x",),)))
    assert "[bold]x" in console.export_text()


def test_a_ragged_row_is_refused() -> None:
    with pytest.raises(ValueError, match="rows must have 2 cells"):
        ResultTable(columns=("a", "b"), rows=(("1",),))
