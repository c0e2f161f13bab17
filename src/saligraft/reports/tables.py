"""One table, two faces: rich for the terminal, HTML for the page, from the same rows of text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Columns and rows as they are read; the first column names the row.

    `best` holds (row, column) places to set in bold, `notes` the lines that stand under the table.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"rows must have {len(self.columns)} cells as columns do, got {row}")


def lowest(values: Sequence[float | None]) -> frozenset[int]:
    """The places of the lowest value, all of them on a tie; values that are missing do not count."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return frozenset()
    return frozenset(i for i, value in enumerate(values) if value == min(known))


def terminal_table(table: ResultTable) -> RichTable:
    """The table for `rich.console.Console.print`."""
    caption = "\n".join(["", *table.notes]) if table.notes else None
    out = RichTable(
        title=table.title or None, title_justify="left", caption=caption, caption_justify="left",
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold",
    )  # fmt: skip
    for place, column in enumerate(table.columns):
        out.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    for i, row in enumerate(table.rows):
        out.add_row(*(Text(cell, style="bold green" if (i, j) in table.best else "") for j, cell in enumerate(row)))
    return out


def html_table(table: ResultTable) -> str:
    """The table as HTML, inside a box that scrolls sideways by itself on a narrow screen."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = "".join(_html_row(table, i) for i in range(len(table.rows)))
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="scroll"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}'
    )


def _html_row(table: ResultTable, i: int) -> str:
    name, *cells = table.rows[i]
    rest = "".join(
        f'<td data-column="{escape(table.columns[j])}">{_cell(cell, (i, j) in table.best)}</td>'
        for j, cell in enumerate(cells, start=1)
    )
    return f'<tr><th scope="row">{escape(name)}</th>{rest}</tr>'


def _cell(text: str, best: bool) -> str:
    return f"<strong>{escape(text)}</strong>" if best else escape(text)
