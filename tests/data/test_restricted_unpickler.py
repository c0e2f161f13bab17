"""The restricted unpickler: plain data passes, every call is refused by name."""

import builtins
import functools
import io
import os
import pickle
import pickletools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saligraft.data.restricted_unpickler import ByteArray, loads

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.binary(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(plain, st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back_as_it_was(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol=protocol)) == value


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 3), (1, 1)])
@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_arrays_of_bytes_come_back(shape: tuple[int, ...], module: bytes) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    content = pickle.dumps({b"data": array}, protocol=3).replace(b"numpy._core.multiarray", module)
    assert module in content
    found = loads(content)[b"data"]
    assert isinstance(found, ByteArray)
    assert torch.equal(found.values, torch.from_numpy(array))


def test_strings_of_python_2_come_back_as_bytes() -> None:
    assert loads(b"\x80\x02}U\x06labels]K\x07as.") == {b"labels": [7]}


class Gadget:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {}",), "system"),
        (builtins.eval, ("open({!r}, 'w')",), "eval"),
        (builtins.exec, ("open({!r}, 'w')",), "exec"),
        (builtins.getattr, ({}, "get"), "getattr"),
        (builtins.open, ("{}", "w"), "open"),
        (subprocess.Popen, (["touch", "{}"],), "Popen"),
        (functools.partial, (print,), "partial"),
        (Path, ("x",), "Path"),
        (np.fromfile, ("{}",), "fromfile"),
        (np.load, ("{}",), "load"),
        (np.frombuffer, (b"xx",), "frombuffer"),
        (np.memmap, ("{}",), "memmap"),
        (np.float32(1).__reduce__()[0], (1,), "scalar"),
        (bytearray, (10**12,), "bytearray"),
        (torch.load, ("{}",), "load"),
        (pickle.loads, (b"",), "loads"),
    ],
)
def test_every_call_is_refused_by_name(function: Any, arguments: tuple[Any, ...], name: str, tmp_path: Path) -> None:
    target = tmp_path / "touched"
    filled = tuple(part.format(str(target)) if isinstance(part, str) else part for part in arguments)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(Gadget(function, *filled), protocol=protocol)
        with pytest.raises(ValueError, match=rf"it calls .*\.{name}, which is refused"):
            loads(content)
        assert not target.exists()


@pytest.mark.parametrize(
    "name",
    ["numpy runtime", "numpy.testing._private.utils runstring", "numpy.f2py.crackfortran myeval",
     "numpy ndarray.tofile", "numpy.core.multiarray _reconstruct.__globals__", "numpy dtype.__class__",
     "saligraft.data.restricted_unpickler loads", "__main__ x", "copyreg _reconstructor", "builtins object"],
)  # fmt: skip
def test_names_that_only_look_like_numpy_are_refused(name: str) -> None:
    module, attribute = (part.encode() for part in name.split())
    contents = {
        "GLOBAL": b"c" + module + b"\n" + attribute + b"\n.",
        "STACK_GLOBAL": b"\x80\x04\x8c" + bytes([len(module)]) + module
                        + b"\x8c" + bytes([len(attribute)]) + attribute + b"\x93.",
        "INST": b"(i" + module + b"\n" + attribute + b"\n.",
    }  # fmt: skip
    for form, content in contents.items():
        assert form in {code.name for code, _, _ in pickletools.genops(content)}
        with pytest.raises(ValueError, match="which is refused"):
            loads(content)


@pytest.mark.parametrize(
    "array",
    [np.array([object], dtype=object), np.zeros(2), np.zeros(2, "i1"), np.array(["x"]), np.zeros(1, [("a", "u1")])],
)
def test_other_arrays_are_refused(array: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="not a pickle of plain data"):
        loads(pickle.dumps(array, protocol=3))


def test_a_shape_that_the_content_does_not_fill_is_refused() -> None:
    content = pickle.dumps(np.zeros(7, np.uint8), protocol=3).replace(b"K\x07\x85", b"K\x09\x85")
    with pytest.raises(ValueError, match="not a pickle of plain data"):
        loads(content)


def test_a_stand_in_takes_no_attributes() -> None:
    """BUILD with a dict sets attributes, which could change what the next pickle meets."""
    for name in (b"numpy\ndtype", b"numpy\nndarray", b"numpy.core.multiarray\n_reconstruct"):
        with pytest.raises(ValueError, match="not a pickle of plain data"):
            loads(b"\x80\x02c" + name + b"\nN}U\x08__call__Ns\x86b.")
    test_arrays_of_bytes_come_back((2, 3), b"numpy.core.multiarray")


@pytest.mark.parametrize("content", [b"", b".", b"\x80", b"not a pickle", b"\x80\x02}", b"Pid\n.", b"\x80\x04\x95\xff"])
def test_damage_is_one_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a pickle of plain data"):
        loads(content)


@given(st.integers(0, 200), st.integers(0, 255))
def test_no_flipped_byte_does_more_than_raise(place: int, value: int) -> None:
    content = bytearray(pickle.dumps({b"data": np.zeros((2, 3), np.uint8), b"labels": [1, 2]}, protocol=3))
    content[place % len(content)] = value
    try:
        loads(content)
    except ValueError:
        return


def test_reads_what_the_standard_unpickler_reads() -> None:
    value = {b"labels": list(range(300)), b"names": [b"a" * 300, "ü"], b"nested": ({}, [()], None)}
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=4).dump(value)
    assert loads(buffer.getvalue()) == pickle.loads(buffer.getvalue())
