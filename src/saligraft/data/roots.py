"""Where a data set's files are looked for when no `root` is given."""

from pathlib import Path


def default_root(name: str) -> Path:
    """`data/NAME` under the working folder, which is also where downloads go."""
    return Path("data") / name
