"""Read the data in a pickle without running any of it: names are looked up in a table of ours, nothing is imported.

``pickle._Unpickler`` is Python's own reader in Python. Of its opcodes only those that build data are taken over, and
those that call or change something are ours. Long byte strings are views into the file, not copies, and its memo is a
dict: the reader in C copies them, and makes room for as many memos as a file says it has.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class PickleError(Exception):
    """A pickle that is not whole, or that is more than data."""


class RefusedName(PickleError):
    """A pickle that asks for a function or class that the table has not."""


@dataclass(frozen=True)
class AllowedName:
    """A function or class that a pickle may name, and what is made in its place, by a function of ours."""

    name: str
    make: Callable[..., Any]


class Stateful:
    """What a pickle gives its state to after it made it; classes of ours in place of the trainer's."""

    def set_state(self, state: Any) -> None:
        """Take the state over."""
        raise NotImplementedError


_VIEWED = 1 << 16  # pickle writes byte strings from this size on outside of its frames
_COPIED = 1 << 30  # of numbers, texts and short byte strings: each becomes an object many times its size


class _File:
    """A file over bytes; reads of some size are views."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at, self._copied = data, 0, 0

    def read(self, size: int) -> bytes | memoryview:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise PickleError("it is cut off")
        self._at += size
        if size >= _VIEWED:
            return found
        self._copied += size
        if self._copied > _COPIED:
            raise PickleError("more than 1 GiB of it are Python objects and not tensors; at most that is read")
        return bytes(found)

    def readline(self) -> bytes:
        end = self._at
        while end < len(self._data) and self._data[end] != 10:
            end += 1
        return bytes(self.read(end + 1 - self._at))


#: The opcodes that make numbers, texts, bytes and collections, or move them about, as Python's reader does.
_DATA = """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT NONE NEWTRUE NEWFALSE UNICODE SHORT_BINUNICODE BINUNICODE
    BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_LIST EMPTY_TUPLE EMPTY_DICT EMPTY_SET TUPLE1 TUPLE2 TUPLE3 TUPLE
    LIST FROZENSET DICT MARK POP POP_MARK DUP PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET MEMOIZE PROTO STOP GLOBAL
    STACK_GLOBAL BINPERSID
"""
#: Those that add to something, and to what they may: below the mark, or so far down on the stack.
_ADDING: dict[str, tuple[type, int]] = {
    "APPEND": (list, -2),
    "APPENDS": (list, 0),
    "ADDITEMS": (set, 0),
    "SETITEM": (dict, -3),
    "SETITEMS": (dict, 0),
}
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_PYTHONS: Any = pickle._Unpickler.dispatch
_LOADS: dict[str, Callable[[Any], None]] = {name: _PYTHONS[code] for name, code in _CODES.items() if code in _PYTHONS}


class _Loads(dict[int, Callable[[Any], None]]):
    """What each opcode does; any other is refused by its name."""

    def __missing__(self, code: int) -> Any:
        name = next((name for name, its_code in _CODES.items() if its_code == code), code)
        raise PickleError(f"it uses the opcode {name}, which no batch of tensors needs")


class _Reader(pickle._Unpickler):
    """Python's reader, of which data alone is left."""

    stack: list[Any]
    metastack: list[list[Any]]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    dispatch = _Loads()

    def __init__(self, data: memoryview, known: Mapping[str, AllowedName], persistent: Callable[[Any], Any] | None):
        super().__init__(_File(data))  # type: ignore[arg-type]  # it reads, which is all that is asked of it
        self._known, self._persistent = known, persistent

    def find_class(self, module: str, name: str) -> Any:
        """Look a name up in the table; nothing is imported."""
        if (full := f"{module}.{name}") not in self._known:
            raise RefusedName(full)
        return self._known[full]

    def persistent_load(self, pid: Any) -> Any:
        """Return what the reader's owner makes of it."""
        if self._persistent is None:
            raise PickleError("it refers to something outside of the file")
        return self._persistent(pid)

    def call(self) -> None:
        """Make what stands for the name below on the stack, of the arguments above it."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, AllowedName):
            raise PickleError(f"it calls a {type(function).__name__}")
        self.append(function.make(*arguments))

    def give_state(self) -> None:
        """Give the state above on the stack to the object below it."""
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Stateful):
            made.set_state(state)
        elif state:
            raise PickleError(f"it gives a state to a {type(made).__name__}")


def _adding(name: str, kind: type, depth: int) -> Callable[[_Reader], None]:
    def load(reader: _Reader) -> None:
        target = reader.stack[depth] if depth else reader.metastack[-1][-1]
        if not isinstance(target, kind):  # a tensor would be written to, and with it the file
            raise PickleError(f"it adds to a {type(target).__name__}")
        _LOADS[name](reader)

    return load


_Reader.dispatch.update({_CODES[name]: _LOADS[name] for name in _DATA.split()})
_Reader.dispatch.update({_CODES[name]: _adding(name, kind, depth) for name, (kind, depth) in _ADDING.items()})
_Reader.dispatch.update(
    {_CODES["REDUCE"]: _Reader.call, _CODES["NEWOBJ"]: _Reader.call, _CODES["BUILD"]: _Reader.give_state}
)
_Reader.dispatch.update({_CODES["FRAME"]: lambda reader: reader.read(8), _CODES["BYTEARRAY8"]: _LOADS["BINBYTES8"]})


def read(data: memoryview, known: Mapping[str, AllowedName], persistent: Callable[[Any], Any] | None = None) -> Any:
    """Return the data in a pickle.

    Args:
        data: The pickle; what is returned may hold views into it.
        known: What it may name, by ``module.name``.
        persistent: What to make of a persistent id, as torch uses them for storages.

    Raises:
        RefusedName: It names something that is not in the table; nothing of that was imported or called.
        PickleError: It is cut off, malformed, or uses opcodes that data does not need.
    """
    try:
        return _Reader(data, known, persistent).load()
    except PickleError:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        struct.error,
    ) as error:
        raise PickleError(f"it is cut off or malformed: {error}") from error
