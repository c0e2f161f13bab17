"""Tables of results: the same rows of text for the terminal (rich), for a page and as Markdown."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of text.

    Args:
        columns: Headings; the first column names the row.
        rows: One text per column each.
        notes: Lines under the table.
        best: (row, column) of the cells to print in bold.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"rows must have {len(self.columns)} cells as columns do, got {row}")


def print_table(console: Console, table: ResultTable) -> None:
    """Print a table: aligned on a terminal, as Markdown in a file or pipe, which has no width to fit.

    Args:
        console: Where to print.
        table: The table.
    """
    if not console.is_terminal:
        print(markdown_table(table), file=console.file)
        return
    caption = "\n".join(["", *table.notes]) if table.notes else None
    out = RichTable(
        caption=caption, caption_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold"
    )
    for place, column in enumerate(table.columns):
        out.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    for i, row in enumerate(table.rows):
        out.add_row(*(Text(cell, style="bold green" if (i, j) in table.best else "") for j, cell in enumerate(row)))
    console.print(out, "")


def markdown_table(table: ResultTable) -> str:
    """Format a table as Markdown, with the notes under it.

    Args:
        table: The table.

    Returns:
        Lines that end with a newline.
    """
    rows = [[f"**{c}**" if (i, j) in table.best else c for j, c in enumerate(row)] for i, row in enumerate(table.rows)]
    ruler = ["---", *["---:"] * (len(table.columns) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (table.columns, ruler, *rows)]
    return "\n".join([*lines, "", *(f"{note}\n" for note in table.notes)])
