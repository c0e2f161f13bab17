"""Where a data set's files are looked for."""

from pathlib import Path


def data_root(name: str, root: str | Path | None) -> Path:
    """The given folder, "~" being the user's own, or the default."""
    if root is None:
        return default_root(name)
    try:
        return Path(root).expanduser()
    except RuntimeError as error:
        raise ValueError(f"root must name a folder, got {str(root)!r}: {error}") from None


def default_root(name: str) -> Path:
    """`data/NAME` under the working folder, which is also where downloads go."""
    return Path("data") / name
