"""Broken remedies: a remedy with a wrapper around it that breaks one promise."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from promises.in_place import spoil_itself
from promises.values import NoChange

Function = Callable[..., Any]
#: To be called when a broken remedy has done something that the whole one would not have done.
Note = Callable[[], None]
#: Takes the remedy and a ``Note``; returns the broken remedy.
Break = Callable[[Function, Note], Function]


class AnotherError(Exception):
    """What no docstring promises."""


def without_argument(name: str) -> Break:
    """An argument has no effect: its default is taken, of any number the first."""

    def broken(function: Function, note: Note) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **kwargs)
            parameter = bound.signature.parameters[name]
            given = bound.arguments.pop(name, parameter.empty)
            if given is not parameter.empty and given is not parameter.default:
                note()
            if parameter.kind is parameter.VAR_POSITIONAL:
                bound.arguments[name] = given[:1] if given is not parameter.empty else ()
            return function(*bound.args, **bound.kwargs)

        return call

    return broken


#: Variable with a folder that the processes of a run share.
SHARED = "RLREGRESS_TEST_MUTANTS"


def with_first(key: str, name: str) -> Break:
    """An argument keeps the value that it had first in this run, whichever process that was in."""

    def broken(function: Function, note: Note) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(function).bind(*args, **kwargs)
            given, file = bound.arguments[name], Path(os.environ[SHARED], key)
            if not file.exists():
                file.write_bytes(pickle.dumps(given))
            bound.arguments[name] = pickle.loads(file.read_bytes())
            if bound.arguments[name] != given:
                note()
            return function(*bound.args, **bound.kwargs)

        return call

    return broken


def spoiling(name: str, spoil: Callable[[Any], None]) -> Break:
    """An argument is changed in place after the work."""

    def broken(function: Function, note: Note) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(function).bind(*args, **kwargs).arguments.get(name)
            result = function(*args, **kwargs)
            if isinstance(result, Iterator):
                result = iter(list(result))
            with _noted(note):
                spoil(given)
            return result

        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            given = inspect.signature(function).bind(*args, **kwargs).arguments.get(name)
            with function(*args, **kwargs) as value:
                yield value
            with _noted(note):
                spoil(given)

        return contextmanager(generate) if is_context(function) else call

    return broken


@contextmanager
def _noted(note: Note) -> Iterator[None]:
    """Note that a change was made, unless there was none to make."""
    try:
        yield
    except NoChange:
        return
    note()


def raising(name: str, another: type[Exception] | None, method: str | None) -> Break:
    """An error, of the result's ``method`` or of the remedy itself, is another one, or none."""

    def broken(function: Function, note: Note) -> Function:
        if method is None:
            return _guarded(function, name, another, note)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            setattr(result, method, _guarded(getattr(result, method), name, another, note))
            return result

        return call

    return broken


def _guarded(function: Function, name: str, another: type[Exception] | None, note: Note) -> Function:
    """A function that raises nothing of that name: another error, or none, and goes on with its first argument."""

    def seen(error: Exception) -> None:
        if not any(one.__name__ == name for one in type(error).__mro__):
            raise error
        note()
        if another:
            raise another(str(error)) from None

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            seen(error)
            return _first(args, kwargs)
        if inspect.isawaitable(result):
            return await_(result)
        return iterate(result) if isinstance(result, Iterator) else result

    async def await_(result: Awaitable[Any]) -> Any:
        try:
            return await result
        except Exception as error:
            seen(error)

    def iterate(result: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from result
        except Exception as error:
            seen(error)

    def context(*args: Any, **kwargs: Any) -> Iterator[Any]:
        entered = False
        try:
            with function(*args, **kwargs) as value:
                entered = True
                yield value
        except Exception as error:
            seen(error)
            if not entered:
                yield _first(args, kwargs)

    return contextmanager(context) if is_context(function) else call


def spoiling_when_refused(function: Function, note: Note) -> Function:
    """Arguments are changed in place before an error."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            for argument in (*args, *kwargs.values()):
                with _noted(note):
                    spoil_itself(argument)
            raise

    return call


#: Takes a result and the arguments; returns another result.
Change = Callable[[Any, tuple[Any, ...]], Any]


def returning(change: Change) -> Break:
    """Another result."""

    def broken(function: Function, note: Note) -> Function:
        def changed(value: Any, arguments: tuple[Any, ...]) -> Any:
            if isinstance(value, Iterator):
                value = list(value)
                try:
                    new = change(iter(value), arguments)
                except NoChange:
                    return iter(value)
                note()
                return new
            with _noted(note):
                value = change(value, arguments)
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            return changed(function(*args, **kwargs), (*args, *kwargs.values()))

        def context(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with function(*args, **kwargs) as value:
                yield changed(value, ())

        return contextmanager(context) if is_context(function) else call

    return broken


def left_out(function: Function, note: Note) -> Function:
    """Nothing is done: the first argument is returned as it is."""

    def call(*args: Any, **kwargs: Any) -> Any:
        note()
        if inspect.isgeneratorfunction(function):
            return iter(())
        first = _first(args, kwargs)
        if inspect.iscoroutinefunction(function):
            return asyncio.sleep(0)
        return nullcontext(first) if is_context(function) else first

    return call


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return next(iter((*args, *kwargs.values())), None)


def is_context(function: Function) -> bool:
    """Whether ``contextmanager`` made it."""
    return hasattr(function, "__wrapped__") and inspect.isgeneratorfunction(inspect.unwrap(function))


#: Contexts that are not undone: the end of their generators would do it.
ENTERED: list[Any] = []


def leaving(function: Function, note: Note, undone: tuple[bool, bool]) -> Function:
    """What the context changes is ``undone`` after success or not, and after an error or not."""
    after_success, after_failure = undone

    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        context = function(*args, **kwargs)
        ENTERED.append(context)
        value = context.__enter__()
        try:
            yield value
        except BaseException:
            if after_failure:
                context.__exit__(None, None, None)
            note()
            raise
        if after_success:
            context.__exit__(None, None, None)
        else:
            note()

    return contextmanager(call)


def forgiving(function: Function, note: Note) -> Function:
    """The error of a block goes no further."""

    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with function(*args, **kwargs) as value:
            try:
                yield value
            except Exception:
                note()

    return contextmanager(call)
