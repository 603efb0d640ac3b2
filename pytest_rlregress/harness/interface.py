"""Outcomes that aren't verdicts: a test can't drive the installed stack, did not act, or has a mistake of its own."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from pytest_rlregress.failures.act import DidNotAct, forget_act, has_begun, marks_act
from pytest_rlregress.failures.catalogue import area_of
from pytest_rlregress.stack import COMPONENTS, InterfaceMissing, component_of, missing, versions

#: Packages that do nothing of an act, besides Python's own.
_HARNESS = ("pytest_rlregress", "pytest", "_pytest", "pluggy", "hypothesis")
#: Calls after which it is no Python code here that acts, by module: of another process, of a native library.
_ELSEWHERE = {
    "_imp": {"create_dynamic"},
    "posix": {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system"},
    "_posixsubprocess": {"fork_exec"},
    "socket": {"connect", "connect_ex", "send", "sendall"},
}

_PACKAGE = "pytest_rlregress"
_REMEDIES = f"{_PACKAGE}.remedies"  # one that finds an object without its attribute doesn't work with it
#: What only passes an access on: the import system, ``monkeypatch``, a module's or class' own ``__getattr__``.
_PASSING_MODULES = ("importlib", "_pytest.monkeypatch")
_PASSING_FUNCTIONS = ("__getattr__", "__getattribute__")

_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")
_PATCHED = re.compile(r"<(?:module|class) '(?P<module>[\w.]+)'.*> has no attribute '(?P<name>\w+)'")
_CALL = re.compile(
    r"(?P<function>[\w.]+)\(\) (?P<how>missing \d+ required|got an unexpected keyword|got multiple values|takes )"
)
_NO_GPU = re.compile("Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available")


def missing_interface(error: BaseException, test_file: Path) -> str:
    """Name what a test lacks: an interface the installed version of a component doesn't have, or a whole component.

    A component is lacking whoever imports it: transformers' Trainer asks for accelerate, which it does not require.
    Such is a module, a function or class of one, or an argument of theirs, that the harness or the test's own file
    asked for: the innermost frame of the traceback says who. An attribute of an object is one where a fixture or a
    helper that drives the component asked; in the test's own file it may be the failure. Where no frame shows, such as
    through an actor,
    ``InterfaceMissing`` says it. "" for any other exception: what fails inside of the stack, or in the user's own
    function under a guard, is no matter of the test.

    Args:
        error: What came out of the test.
        test_file: The test's file: the helpers of its folder and area count as the test's own.
    """
    if isinstance(error, InterfaceMissing):
        return str(getattr(error, "cause", error))  # Ray's has all of the actor's traceback in its own text
    if isinstance(error, ImportError) and (reason := _not_installed(error)):
        return reason
    frame = _asking(error)
    if frame is None or not _is_of_test(frame, test_file):
        return ""
    module = str(frame.f_globals.get("__name__"))
    driver = Path(frame.f_code.co_filename) != test_file and not module.startswith(_REMEDIES)
    return _import(error) or _attribute(error) or _call(error, frame) or (_object_attribute(error) if driver else "")


def undriven(error: BaseException, test_file: Path) -> str:
    """Name the component that failed while a test prepared its act, with the exception; "" if no component did.

    It is the innermost one in the traceback, or the package itself where no component called it. An exception that the
    test's own code raised is its own, unless it comes from one of the stack (``raise … from``).
    """
    found = ""
    for frame in reversed([*_frames(error)]):
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if _is_of_test(frame, test_file):
            break
        if component := component_of(module):
            found = f"{component} {versions().get(component, '')}".rstrip()
            break
        if not found and package not in (*_HARNESS, "", *sys.stdlib_module_names):
            found = _distribution(package)
    if found:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{found} can't be driven this way: {': '.join([type(error).__name__, *lines[:1]])}"
    return _object_attribute(error) or (undriven(error.__cause__, test_file) if error.__cause__ is not None else "")


def _distribution(package: str) -> str:
    """Return what provides a package, with its version; "" if nothing installed does."""
    for name in metadata.packages_distributions().get(package, ()):
        return f"{name} {metadata.version(name)}"
    return ""


def mistake(error: BaseException, item: pytest.Item) -> str:
    """Say what is wrong with the test itself: an undefined name, no act, a GPU without marker hw; "" for nothing."""
    if isinstance(error, DidNotAct):
        return f"a mistake of the test: {error}"
    frame = _asking(error)
    if isinstance(error, NameError) and frame is not None and _is_of_test(frame, item.path):
        return f"a mistake of the test: {type(error).__name__}: {error}"
    if _NO_GPU.search(str(error)) and item.get_closest_marker("hw") is None:
        outside = [f for f in _frames(error) if component_of(f.f_globals.get("__name__", "")) != "torch"]
        if outside and Path(outside[-1].f_code.co_filename) == item.path:
            return f"the test uses a GPU, which the marker hw has to say: {error}"
    return ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an exception came through, outermost first."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _asking(error: BaseException) -> FrameType | None:
    """Return the innermost frame that did not only pass on what another one asked for."""
    for frame in reversed([*_frames(error)]):
        module = frame.f_globals.get("__name__", "")
        passing = module in _PASSING_MODULES or module.startswith("importlib.")
        if not passing and frame.f_code.co_name not in _PASSING_FUNCTIONS:
            return frame
    return None


def _is_of_test(frame: FrameType, test_file: Path) -> bool:
    module = frame.f_globals.get("__name__", "")
    own = (test_file.parent, area_of(test_file))
    return module.partition(".")[0] == _PACKAGE or Path(frame.f_code.co_filename).parent in own


def _not_installed(error: ImportError) -> str:
    """Say which components an import failed for that are not installed; "" if there is none.

    One that a remedy hides is installed: that its guard cannot import it is the remedy's doing.
    """
    if isinstance(error, ModuleNotFoundError):
        named = [component for component in [component_of(error.name or "")] if component]
    else:
        words = re.findall(r"[\w-]+", str(error))
        named = [name for name in COMPONENTS if name in words or name.replace("-", "_") in words]
    installed = versions()
    return "; ".join(missing(name for name in named if name not in installed).values())


def _import(error: BaseException) -> str:
    if not isinstance(error, ImportError):
        return ""
    found = _IMPORT.match(str(error))
    if found:
        return _of_component(found["module"], f"{found['module']}.{found['name']}")
    return _of_component(error.name, error.name) if isinstance(error, ModuleNotFoundError) and error.name else ""


def _attribute(error: BaseException) -> str:
    if not isinstance(error, AttributeError):
        return ""
    if isinstance(error.obj, ModuleType):
        return _of_component(error.obj.__name__, f"{error.obj.__name__}.{error.name}")
    if isinstance(error.obj, type):
        return _of_component(error.obj.__module__, f"{error.obj.__module__}.{error.obj.__qualname__}.{error.name}")
    patched = _PATCHED.match(str(error))
    return _of_component(patched["module"], f"{patched['module']}.{patched['name']}") if patched else ""


def _object_attribute(error: BaseException) -> str:
    if not isinstance(error, AttributeError) or isinstance(error.obj, (ModuleType, type)):
        return ""
    made = type(error.obj)
    return _of_component(made.__module__, f"{made.__module__}.{made.__qualname__}.{error.name}")


def _call(error: BaseException, frame: FrameType) -> str:
    """Find a function or class that takes other arguments: Python names it, the frame that calls it has its module."""
    found = _CALL.match(str(error)) if isinstance(error, TypeError) else None
    if found is None:
        return ""
    names = found["function"].split(".")
    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
        owner: Any = getattr(value, names[0], None) if isinstance(value, ModuleType) else value
        name = getattr(owner, "__qualname__", None) or type(owner).__qualname__
        if name in (names[0], found["function"]):
            module = str(owner.__module__)
            what = f"{module}.{found['function']} ({str(error).partition('() ')[2]})"
            return _of_component(module, what)
    return ""


def _of_component(module: str, interface: str) -> str:
    """Say that the module's component doesn't have the interface; "" if no installed component has it."""
    component = component_of(module)
    if component is None or importlib.util.find_spec(module.partition(".")[0]) is None:
        return ""
    version = versions().get(component)
    return f"needs {interface}, which {component} {version} doesn't have" if version else ""


def describe_of(item: pytest.Item, call: pytest.CallInfo[None]) -> dict[str, Any]:
    """Describe what a test raised, and whether it is the test's: see ``pytest_rlregress.failures.verdicts.Outcome``.

    A component that cannot import what it wants of another one ends a reproduction before the failure could come. A
    guard fails by it, as it would for the user who follows the remedy.
    """
    if call.excinfo is None:
        raise ValueError("the call raised nothing")
    error = call.excinfo.value
    lacks = missing_interface(error, item.path)
    if item.get_closest_marker("reproduces"):
        lacks = lacks or _import(error)
    prepares = call.when == "setup" or (call.when == "call" and _marks_act(item) and not has_begun())
    fault = mistake(error, item)
    return {
        **describe(call.excinfo),
        "phase": "setup" if prepares else call.when,
        "lacks": lacks,
        "undriven": undriven(error, item.path) if prepares and not fault else "",
        "mistake": fault,
    }


def _marks_act(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and marks_act(item.function)


def describe(excinfo: pytest.ExceptionInfo[BaseException]) -> dict[str, Any]:
    """Classes (most derived first), message and frames (``file:function``, outermost first) of an exception."""
    try:
        message = str(excinfo.value)
    except Exception as error:
        message = f"<str() of the exception raised {type(error).__name__}>"
    return {
        "exceptions": [f"{cls.__module__}.{cls.__qualname__}" for cls in excinfo.type.__mro__[:-1]],
        "message": message,
        "frames": [f"{Path(entry.path).as_posix()}:{entry.name}" for entry in excinfo.traceback],
    }


def watch_act(item: pytest.Item, components: Sequence[str] | None) -> Generator[None, object, object]:
    """Fail a sided test that came to its end and did not act: it would be called ``absent`` or ``held``.

    Around ``pytest_runtest_call``.

    Args:
        item: The test.
        components: The components that a test which reproduces a failure needs; None for a guard, which may need none.
    """
    forget_act()
    result = (yield) if components is None else (yield from _watch_calls(item, components))
    if _marks_act(item) and not has_begun():
        raise DidNotAct("the test did not act: it came to its end before `with act():`")
    return result


def _watch_calls(item: pytest.Item, components: Sequence[str]) -> Generator[None, object, object]:
    """Fail a test that raised nothing and called nothing that can have failed.

    The sign of an act is a call into an installed package, or to another process; where
    the test needs no component, any call. Calls are looked at, in threads that the test starts too, until one is that
    sign; not where a profiler looks at them.
    """
    if not isinstance(item, pytest.Function) or sys.getprofile():
        return (yield)
    act = _Act(inspect.unwrap(item.function), any_call=not components)
    threading.setprofile(act.look)
    sys.setprofile(act.look)
    try:
        result = yield
    finally:
        threading.setprofile(None)
        act.ended = True
        sys.setprofile(None)
    if not act.seen:
        called = f"nothing installed, though it needs {', '.join(components)}" if components else "nothing"
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
