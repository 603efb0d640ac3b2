"""Read the data in a pickle without running any of it: names are looked up in a table of ours, nothing is imported.

``pickletools.genops`` takes the file apart into opcodes; the interpreter below knows those that build data. A name that
the table has not is refused before anything is made of it. Long byte strings are views into the file, not copies.
"""

from __future__ import annotations

import pickletools
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
    """A file over bytes, for ``genops``; reads of some size are views."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at, self._copied = data, 0, 0

    def read(self, size: int) -> bytes | memoryview:
        found = self._data[self._at : self._at + size]
        self._at += len(found)
        if size >= _VIEWED:
            return found
        self._copied += len(found)
        if self._copied > _COPIED:
            raise PickleError("more than 1 GiB of it are Python objects and not tensors; at most that is read")
        return bytes(found)

    def readline(self) -> bytes:
        end = self._at
        while end < len(self._data) and self._data[end] != 10:
            end += 1
        return bytes(self.read(end + 1 - self._at))

    def tell(self) -> int:
        return self._at


_MARK = object()
_NUMBERS = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
_TEXTS = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_BYTES = {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
_LITERALS = _NUMBERS | _TEXTS | _BYTES
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARKED: dict[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "FROZENSET": frozenset,
    "DICT": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
}


class _Machine:
    """The stack and the memo of one pickle."""

    def __init__(self, known: Mapping[str, AllowedName], persistent: Callable[[Any], Any] | None) -> None:
        self._known, self._persistent = known, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: memoryview) -> Any:
        for opcode, argument, _ in pickletools.genops(_File(data)):  # type: ignore[arg-type]  # it reads and tells
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise PickleError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in _MARKED:
            stack.append(_MARKED[name](self._above_mark()))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name not in ("PROTO", "FRAME"):
            act = getattr(self, f"_do_{name.lower()}", None)
            if act is None:
                raise PickleError(f"it uses the opcode {name}, which no batch of tensors needs")
            act(argument)

    def _above_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _do_mark(self, _: Any) -> None:
        self._stack.append(_MARK)

    def _do_pop(self, _: Any) -> None:
        self._stack.pop()

    def _do_pop_mark(self, _: Any) -> None:
        self._above_mark()

    def _do_dup(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def _do_memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _do_append(self, _: Any) -> None:
        item = self._stack.pop()
        self._of(list).append(item)

    def _do_appends(self, _: Any) -> None:
        items = self._above_mark()
        self._of(list).extend(items)

    def _do_additems(self, _: Any) -> None:
        items = self._above_mark()
        self._of(set).update(items)

    def _do_setitem(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._of(dict)[key] = value

    def _do_setitems(self, _: Any) -> None:
        items = self._above_mark()
        self._of(dict).update(zip(items[::2], items[1::2], strict=True))

    def _do_global(self, argument: str) -> None:
        self._name(*argument.split(" ", 1))

    def _do_stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._name(module, name)

    def _do_reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, AllowedName):
            raise PickleError(f"it calls a {type(function).__name__}")
        self._stack.append(function.make(*arguments))

    _do_newobj = _do_reduce

    def _do_build(self, _: Any) -> None:
        state = self._stack.pop()
        made = self._stack[-1]
        if isinstance(made, Stateful):
            made.set_state(state)
        elif state:
            raise PickleError(f"it gives a state to a {type(made).__name__}")

    def _do_binpersid(self, _: Any) -> None:
        if self._persistent is None:
            raise PickleError("it refers to something outside of the file")
        self._stack.append(self._persistent(self._stack.pop()))

    def _name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in self._known:
            raise RefusedName(full)
        self._stack.append(self._known[full])

    def _of(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise PickleError(f"it adds to a {type(self._stack[-1]).__name__}")
        return self._stack[-1]


def read(data: memoryview, known: Mapping[str, AllowedName], persistent: Callable[[Any], Any] | None = None) -> Any:
    """The data in a pickle.

    Args:
        data: The pickle; what is returned may hold views into it.
        known: What it may name, by ``module.name``.
        persistent: What to make of a persistent id, as torch uses them for storages.

    Raises:
        RefusedName: It names something that is not in the table; nothing of that was imported or called.
        PickleError: It is cut off, malformed, or uses opcodes that data does not need.
    """
    try:
        return _Machine(known, persistent).run(data)
    except PickleError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError) as error:
        raise PickleError(f"it is cut off or malformed: {error}") from error
