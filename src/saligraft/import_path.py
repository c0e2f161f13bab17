"""The user's own code by name: "package.module:Name", wherever a recipe names something; and missing extras.

A recipe with such a name runs that code, so it must be trusted like a program.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

from saligraft.names import did_you_mean, one_line

GIVEN = "given"  # "given:NAME" records an object that was passed to `train` in Python
RESERVED = ("folder", "timm", "torchvision", GIVEN)  # "folder:PATH" and the like have their own meaning


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for errors about a missing package.

    Args:
        extra: Name of the extra, such as "lab".

    Example:
        >>> install_command("puzzle")
        "`pip install 'saligraft[puzzle]'` (from a clone: pip install '.[puzzle]')"
    """
    return f"`pip install 'saligraft[{extra}]'` (from a clone: pip install '.[{extra}]')"


def is_import_path(name: str) -> bool:
    """Return whether a name is an import path.

    Args:
        name: Name of a data set, network, method, loss, optimiser or saliency source.

    Example:
        >>> [is_import_path(name) for name in ("birds.data:Birds", "timm:resnet18", "folder:photos", "cutmix")]
        [True, False, False, False]
    """
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    return bool(colon) and module not in RESERVED and all(part.isidentifier() for part in parts)


def is_given(name: str) -> bool:
    """Return whether a name stands for an object that was passed to `train`.

    Args:
        name: Name of a data set or network.
    """
    return name.startswith(f"{GIVEN}:")


def import_object(path: str, what: str) -> Any:
    """Import an object; modules are searched for in the current folder too, after the installed ones.

    Args:
        path: "package.module:Name".
        what: What it is to be, for errors, such as "network".
    """
    module_name, _, attribute = path.partition(":")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109  (entries of sys.path are text)
        sys.path.append(here)
        importlib.invalidate_caches()
    try:
        target = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            reason = f"there is no module {missing!r}, neither installed nor in the current folder"
        else:
            reason = one_line(f"its module raises {type(error).__name__}: {error}")
        raise ValueError(f"{what} {path!r} cannot be imported: {reason}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            hint = did_you_mean(part, dir(target))
            raise ValueError(f"{what} {path!r} cannot be imported: {module_name} has no {attribute!r}{hint}")
        target = getattr(target, part)
    if not callable(target):
        raise ValueError(f"{what} {path!r} must be a class or a function, got {type(target).__name__}")
    return target


def check_arguments(path: str, what: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that an imported class or function does not take, before it is called.

    Args:
        path: "package.module:Name".
        what: What it is to be, for errors.
        arguments: Keyword arguments that it will be called with; more may be added.
    """
    try:
        signature = inspect.signature(import_object(path, what))
    except (ValueError, TypeError) as error:
        if not isinstance(error, TypeError) and path in str(error):
            raise
        return  # some built-in types have no signature
    parameters = signature.parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    valid = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in arguments:
        if name not in valid:
            raise ValueError(f"{what} {path!r} has no option {name!r}; valid: {', '.join(valid) or '(none)'}")


def call(path: str, what: str, arguments: Mapping[str, Any]) -> Any:
    """Call an imported class or function; an error in it is one line.

    Args:
        path: "package.module:Name".
        what: What it is to be, for errors.
        arguments: Its keyword arguments.
    """
    function = import_object(path, what)
    check_arguments(path, what, arguments)
    try:
        return function(**arguments)
    except Exception as error:  # the user's code
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ValueError(f"{what} {path!r} cannot be built: {reason}") from error
