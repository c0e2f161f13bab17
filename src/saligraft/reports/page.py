"""Self-contained HTML pages, which open without server or network, in light and dark mode, on wide and narrow screens.

Pages are Jinja2 templates in `templates/`: `base.html` is the frame, `parts.html` holds what several pages show.
"""

import platform
import re
import shlex
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import saligraft as sg
from saligraft.io.files import write_atomic
from saligraft.names import plural
from saligraft.reports.figures import curves_svg, valid_text
from saligraft.reports.tiles import data_uri

TEMPLATES = Path(__file__).with_name("templates")


@cache
def environment() -> Environment:
    """Return the templates' environment, which escapes every value it inserts."""
    out = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    out.globals["version"] = sg.__version__
    out.filters.update(data_uri=data_uri, curves_svg=curves_svg, minus=minus)
    return out


def minus(text: str) -> str:
    """Write negative numbers with a minus sign instead of a hyphen.

    Args:
        text: Text of a page.

    Example:
        >>> minus("-3.24 to -0.76, wrn-10-2")
        '−3.24 to −0.76, wrn-10-2'
    """
    return re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", text)


def write_page(path: Path, template: str, **values: Any) -> Path:
    """Render a template and write the page; text that is not valid UTF-8 is escaped with a warning.

    Args:
        path: File to write; missing folders are created.
        template: Name of a file in `templates/`.
        values: What the template shows.

    Returns:
        `path`.
    """
    html = environment().get_template(template).render(values)
    text = valid_text(html)
    if text != html:
        warnings.warn(f"{valid_text(str(path))} holds names that are not UTF-8: they are escaped", stacklevel=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    return path


def typed_command() -> str:
    """Return the command of this process, quoted so that it can be typed again."""
    return shlex.join(["saligraft", *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Describe the software and machine of this process, for a page's facts.

    Returns:
        Titles and values.
    """
    threads = plural(torch.get_num_threads(), "thread")
    return {
        "Versions": f"saligraft {sg.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "Machine": f"{platform.system()} {platform.machine()}, {threads}",
    }
