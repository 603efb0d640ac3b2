"""The warm servers and living children of one session."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pytest_rlregress.containment.client import Child, Death, Server
from pytest_rlregress.containment.places import Place
from pytest_rlregress.containment.worker import Order


class Pool:
    """Starts servers and children when first asked for, and ends every one of them."""

    def __init__(self, config: pytest.Config, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._servers: dict[tuple[str, ...], Server] = {}
        self._children: dict[Place, tuple[Child, Server | None]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="rlregress-"))

    def warm(self, modules: tuple[str, ...]) -> Server:
        """The server that imports ``modules``, importing since the first call."""
        if modules not in self._servers:
            self._servers[modules] = Server(modules, os.environ, self._file("server"))
        return self._servers[modules]

    def child(self, place: Place, files: Iterable[Path], modules: tuple[str, ...]) -> Child:
        """The living child of ``place``, forked now if there is none.

        Args:
            place: What the tests in the child share.
            files: Test files the child collects.
            modules: What must be imported before the fork; nothing for a fresh interpreter.

        Raises:
            ContainmentError: The warm server died.
        """
        if place not in self._children:
            own = None
            if place.fresh:
                own = Server((), {**os.environ, **dict(place.environment)}, self._file("server"))
            server = own or self.warm(modules)
            if not server.safe(self._say):  # a second thread or CUDA: nothing may be forked from there
                server = self.warm(())
                server.ready(self._say)
            pass_through = self._config.option.capture == "no"
            self._children[place] = (
                server.fork(self._order(place, files), self._file("child"), pass_through),
                own,
            )
        return self._children[place][0]

    def stop(self, place: Place, hear: Callable[[str, object], None]) -> Death | None:
        """End a child in peace: it tears down its fixtures first; how it died if it did not manage."""
        death = self._children[place][0].stop(hear)
        self.drop(place)
        return death

    def stop_groups(self, but: Place) -> None:
        """End every group but one: a group's engine and cluster are not held while another runs."""
        for place in [place for place in self._children if place != but]:
            self.stop(place, self._complain)

    def drop(self, place: Place) -> None:
        """Let go of a child that is dead or is to die now."""
        child, own = self._children.pop(place)
        child.close()
        if own is not None:
            own.close()

    def close(self, politely: bool) -> None:
        """End everything and remove the session's temporary folder."""
        for place in list(self._children):
            if politely:
                self.stop(place, self._complain)
            else:
                self._children[place][0].interrupt()
                self.drop(place)
        for server in self._servers.values():
            server.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)

    def _complain(self, kind: str, value: object) -> None:
        if kind == "error":
            self._say(f"while a contained process ended: {value}")

    def _order(self, place: Place, files: Iterable[Path]) -> Order:
        options = dict(vars(self._config.option))
        # The child runs what it is told, by node id: no selection, distribution, debugger or report files of its own.
        options.update(keyword="", markexpr="", deselect=None, maxfail=0, usepdb=False, trace=False, pyargs=False)
        options.update(numprocesses=None, dist="no", tx=[], lf=False, failedfirst=False, stepwise=False)
        # By file descriptor: an engine writes to descriptor 1 and asks sys.stdout for its fileno().
        options["capture"] = "no" if options["capture"] == "no" else "fd"
        options["plugins"] = [*options.get("plugins", ()), "no:terminal"]
        options["basetemp"] = self._file("tmp")
        # Else both would be looked for from the test files, which may lie in another project, or in site-packages.
        options["rootdir"] = str(self._config.rootpath)
        options["inifilename"] = self._config.inipath and str(self._config.inipath)
        return Order(
            options=options,
            files=tuple(dict.fromkeys(map(str, files))),
            folder=os.getcwd(),
            environment={**os.environ, **dict(place.environment)},
            workerinput=getattr(self._config, "workerinput", {"workerid": "master", "testrunuid": uuid.uuid4().hex}),
        )

    def _file(self, kind: str) -> Path:
        return self._folder / f"{kind}-{uuid.uuid4().hex[:8]}"
