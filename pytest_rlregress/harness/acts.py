"""Inside the child: tells a test that did the failing act from one that only came to its end."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

from pytest_rlregress.failures.interface import DidNotAct
from pytest_rlregress.harness.items import find

#: Packages that do nothing of an act, besides Python's own.
_HARNESS = ("pytest_rlregress", "pytest", "_pytest", "pluggy")
#: Calls after which it is no Python code here that acts, by module: of another process, of a native library.
_ELSEWHERE = {
    "_imp": {"create_dynamic"},
    "posix": {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system"},
    "_posixsubprocess": {"fork_exec"},
    "socket": {"connect", "connect_ex", "send", "sendall"},
}


def watch(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that reproduces a failure, raised nothing and did not act: it would be called ``absent``.

    Around ``pytest_runtest_call``. The sign of an act is a call into an installed package, or to another process; where
    the test needs no component, any call. Calls are looked at, in threads that the test starts too, until one is that
    sign; not where a profiler looks at them.
    """
    test = find(item)
    if test is None or not test.reproduces or not isinstance(item, pytest.Function) or sys.getprofile():
        return (yield)
    act = _Act(inspect.unwrap(item.function), any_call=not test.components)
    threading.setprofile(act.look)
    sys.setprofile(act.look)
    try:
        result = yield
    finally:
        threading.setprofile(None)
        act.ended = True
        sys.setprofile(None)
    if not act.seen:
        called = f"nothing installed, though it needs {', '.join(test.components)}" if test.components else "nothing"
        raise DidNotAct(f"the test did not act: it raised nothing, and called {called}")
    return result


class _Act:
    """Looks at the calls in a test's body, until one is the sign of its act.

    Attributes:
        seen: Whether one was.
        ended: Set when the test has ended, for threads that go on.
    """

    def __init__(self, body: Any, *, any_call: bool) -> None:
        self._code, self._any_call = getattr(body, "__code__", None), any_call
        self._own = getattr(body, "__module__", "")
        self._begun = self.seen = self.ended = False

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take one event of ``sys.setprofile``."""
        if self.seen or self.ended:
            sys.setprofile(None)
        elif frame.f_code is self._code:
            self._begun = event != "return"
            self.seen = event == "c_call" and self._is_sign(_module_of(argument), argument.__name__)
        elif self._begun and event == "call":
            self.seen = self._is_sign(frame.f_globals.get("__name__") or "")
        elif self._begun and event == "c_call":
            self.seen = self._is_sign(_module_of(argument), argument.__name__)

    def _is_sign(self, module: str, function: str = "") -> bool:
        package = module.partition(".")[0]
        installed = module != self._own and package not in (*_HARNESS, "", *sys.stdlib_module_names)
        return self._any_call or installed or function in _ELSEWHERE.get(module, ())


def _module_of(function: Any) -> str:
    """Return the module of a function written in C: its own, or that of the object or class that it belongs to."""
    owner = getattr(function, "__self__", None)
    owners = (function, owner, type(owner))
    return next((found for one in owners if isinstance(found := getattr(one, "__module__", None), str)), "")
