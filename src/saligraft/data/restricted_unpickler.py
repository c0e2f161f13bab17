"""A restricted unpickler: only plain containers and arrays of bytes.

A pickle names the functions to call. Every name is refused except the three with which NumPy stores an array, and even
these do not call NumPy: small substitutes check their arguments and keep them.
"""

import io
import pickle
from typing import Any

import torch
from torch import Tensor


def loads(content: bytes | bytearray) -> Any:
    """Unpickle numbers, strings, bytes (Python 2's strings too), lists, tuples, dicts and arrays of uint8.

    Args:
        content: The pickle.

    Returns:
        The object, with `ByteArray` for arrays.

    Raises:
        ValueError: The pickle asks for anything else, or is damaged.
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except RecursionError:
        raise ValueError("a pickle must not be nested this deep") from None
    except Exception as error:  # a damaged pickle can make the unpickler raise almost anything
        raise ValueError(f"not a pickle of plain data: {error}") from error


class ByteArray:
    """An array of uint8, as NumPy pickles it: created empty, then filled by `__setstate__`."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = torch.empty(0, dtype=torch.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, is_fortran, content = state
        if type(kind) is not _Uint8 or type(content) is not bytes or is_fortran:
            raise pickle.UnpicklingError("an array must hold uint8 in C order")
        values: Tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else self.values
        self.values = values.reshape([int(size) for size in shape])


class _Reconstruct:
    __slots__ = ()

    def __call__(self, *_arguments: Any) -> ByteArray:  # NumPy's type, (0,), b"b": the initial state of every array
        return ByteArray()


class _Type:
    __slots__ = ()


class _Uint8:
    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order, fields and flags, which have no meaning for a byte."""


class _Dtype:
    __slots__ = ()

    def __call__(self, code: Any, *_flags: Any) -> _Uint8:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array must hold uint8, got dtype {code!r}")
        return _Uint8()


# NumPy 2 moved numpy.core to numpy._core; the classes have no attributes that a pickle could set
_SUBSTITUTES: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy", "ndarray"): _Type,
    ("numpy", "dtype"): _Dtype,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        substitute = _SUBSTITUTES.get((module_name, global_name))
        if substitute is None:
            raise pickle.UnpicklingError(f"it calls {module_name}.{global_name}, which is refused")
        return substitute()
