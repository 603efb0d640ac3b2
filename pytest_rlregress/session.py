"""One run: settings, hardware, stack and catalogue; what each test needs and gets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_rlregress import catalogue, collection, fidelity, hardware, properties, quick, settings, stack, subjects
from pytest_rlregress.containment import interface
from pytest_rlregress.containment.acts import Acts
from pytest_rlregress.containment.child import Limits
from pytest_rlregress.containment.grouping import group_of
from pytest_rlregress.containment.inline import Inline
from pytest_rlregress.containment.plugin import Containment
from pytest_rlregress.containment.reports import add_to_text, make_skipped
from pytest_rlregress.containment.worker import CHANNEL
from pytest_rlregress.fixtures.stack_fixtures import asked_by
from pytest_rlregress.sides import Side, needed_by, side_of
from pytest_rlregress.verdicts import Judgement, Outcome, Verdict, bears, first_line, judge

T = TypeVar("T")
#: Without any of these there is no stack.
_JUDGED = collection.SLOW_MODULES
_KEY: pytest.StashKey[Session] = pytest.StashKey()
#: On a contained test once it has run: what came out, and the ids of the documented failures that a failed one shows.
#: Not on its report, which xdist can only send with plain values.
CONCLUDED: pytest.StashKey[tuple[Outcome, tuple[str, ...]]] = pytest.StashKey()


def find(config: pytest.Config) -> Session:
    """Return the session that a pytest configuration belongs to."""
    if _KEY not in config.stash:
        config.stash[_KEY] = Session(config)
    return config.stash[_KEY]


class Session:
    """What one run knows; each part is looked up when first asked for."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._opened = False
        self._unavailable: dict[pytest.Item, str | None] = {}
        #: How many tests marked long this run leaves out.
        self.left_out = 0
        #: Where pytest would have looked for tests; None where the command line names them.
        self.passed_over: list[str] | None = None

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
        return _usage(lambda: catalogue.load([catalogue.SHIPPED, *self.settings.scenarios]))

    @cached_property
    def profiles(self) -> dict[str, hardware.Profile]:
        """Every hardware profile: the shipped ones and those of ini ``rlregress_hardware``."""
        return _usage(lambda: hardware.load_profiles(self.settings.hardware))

    @cached_property
    def machine(self) -> hardware.Machine:
        """The machine as NVML sees it."""
        return hardware.discover()

    @cached_property
    def profile(self) -> hardware.Profile:
        """The profile of the run: the one ``--hw`` names, else the one that fits this machine."""
        return _usage(lambda: hardware.select(self.settings.hw or "auto", self.machine, self.profiles))

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
    def stack(self) -> stack.Stack:
        """What is installed."""
        return stack.Stack.installed()

    # -- the course of a run ---------------------------------------------------------------------------------------

    def list_profiles(self) -> int:
        """Print the profiles with what each needs."""
        print(hardware.describe_profiles(self.profiles, self.machine))
        return 0

    def open(self, *, every_file: bool = False) -> bool:
        """Check the command line and contain tests from now on; False if there is nothing to report.

        ``every_file``: no test file is imported here before a child has survived that.
        """
        if self._opened or self.settings.hw == "list":
            return False
        self._opened = True
        missing = stack.missing(self.settings.require)
        if missing:
            raise pytest.UsageError(
                f"{self.settings.source['require']} requires {', '.join(self.settings.require)}, but "
                + "; ".join(missing.values())
            )
        _ = self.catalogue
        if self.settings.hw:
            _ = self.profile
            if self.profile.id == "cpu":
                self._hide_gpus()
            self._choose_scenarios()
            # A night's run goes on when one test file cannot be imported; the run fails all the same.
            self._config.option.continue_on_collection_errors = True
        if CHANNEL in self._config.stash:  # a contained child runs what it is told, in process
            self._config.pluginmanager.register(Acts(self), "rlregress-acts")
            return False
        if not hasattr(self._config, "workerinput"):  # once a run, not in each of xdist's workers
            _usage(lambda: subjects.check(self.settings, self.catalogue))
        if self.settings.inline or self._config.getoption("setupplan", False):  # a plan runs nothing
            self._config.pluginmanager.register(Inline(self._config, self), "rlregress-inline")
        else:
            containment = Containment(self._config, self, every_file=every_file)
            self._config.pluginmanager.register(containment, "rlregress-containment")
        return True

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
            if len(stack.missing(_JUDGED)) == len(_JUDGED):
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
            self._config.args[:] = [str(path) for path in (catalogue.SHIPPED, *self.settings.scenarios)]

    def adopt(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Check the markers of collected tests; take those that a quick run leaves out from ``items``, return them."""
        left_out: set[pytest.Item] = set()
        if self.quick and CHANNEL not in self._config.stash:
            left_out = {*items} - quick.choose([item for item in items if not self._is_left_out(item)], self)
        before = list(items)
        items[:] = [item for item in items if item not in left_out]
        for item in items:
            side = self.side(item)
            if side is not None:
                item.extra_keyword_matches.add(side.failure.id)  # -k takes it as it is printed
            if side is not None and side.name == "reproduces" and interface.expects_exception(item):
                raise pytest.UsageError(
                    f"{item.nodeid}: a test that reproduces a failure does the failing act without pytest.raises: the "
                    "plugin judges what comes out, and an exception that the test catches would count as none."
                )
            self.unavailable(item)
        return [item for item in before if item in left_out]

    def leave_out_long(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Take the tests marked long from those that were selected, unless the run asks for them; return them."""
        left_out = [item for item in items if self._is_left_out(item)]
        items[:] = [item for item in items if item not in left_out]
        self.left_out = len(left_out)
        return left_out

    def _is_left_out(self, item: pytest.Item) -> bool:
        """Whether a test is marked long: a contained one, for the marker on others is their own suite's."""
        asked_for = self.settings.long or CHANNEL in self._config.stash
        return not asked_for and item.get_closest_marker("long") is not None and group_of(item) is not None

    # -- what a test is, needs, and gives --------------------------------------------------------------------------

    def side(self, item: pytest.Item) -> Side | None:
        """Return the side of a test; None for other tests."""
        return _usage(partial(side_of, item, self.catalogue))

    def components(self, item: pytest.Item) -> tuple[str, ...]:
        """Return the components, and parts of them, that a test needs: named, or because it asks for their fixtures.

        A test that reproduces a failure needs all components of its failure. A guard does not: with the remedy it may
        touch none of them.
        """
        side = self.side(item)
        act = side.failure.components if side and side.name == "reproduces" else ()
        named = needed_by(item)
        named += [name for fixture in asked_by(item).values() for name in fixture.components]
        whole = [stack.PARTS[name] for name in named if name in stack.PARTS]
        return tuple(dict.fromkeys([*act, *whole, *named]))

    def may_touch(self, item: pytest.Item) -> tuple[str, ...]:
        """Return the components that a test needs, and those of its failure."""
        side = self.side(item)
        return tuple(dict.fromkeys([*(side.failure.components if side else ()), *self.components(item)]))

    def unavailable(self, item: pytest.Item) -> str | None:
        """Return why a test cannot run here: hardware or components that are missing; None if it can."""
        if item not in self._unavailable:
            self._unavailable[item] = self._why_unavailable(item)
        return self._unavailable[item]

    def _why_unavailable(self, item: pytest.Item) -> str | None:
        for marker in item.iter_markers("hw"):
            reason = _usage(
                partial(hardware.unmet, marker.args, marker.kwargs, self.profile, self.machine, known=self.profiles)
            )
            if reason:
                return f"needs {reason}"
        missing = _usage(partial(stack.missing, self.components(item)))
        if not missing and self.profile.id == "cpu" and "vllm" in self.components(item):
            build = self.stack.accelerator_of_vllm()
            return f"vllm: built for {build}, this run is --hw=cpu" if build else None
        return "; ".join(missing.values()) or None

    def subject(self, item: pytest.Item) -> str | None:
        """Name of the function under a failure's guards: the entry's subject, or what ini puts in its place."""
        side = self.side(item)
        if side is None or side.failure.subject is None:
            return None
        return self.settings.subjects.get(side.failure.subject, side.failure.subject)

    def conclude(self, item: pytest.Item, outcome: Outcome, report: pytest.TestReport) -> None:
        """Judge a sided test and put the verdict on its report; name the documented failure a failed one looks like."""
        if self._is_hardware_test(item) and not report.skipped:
            properties.add(report, hardware=self.profile.id)
        side = self.side(item)
        if side is not None and not hasattr(report, "wasxfail"):
            self._judge(item, side, outcome, report)
        named: list[catalogue.Failure] = []
        if report.failed:
            from pytest_rlregress.diagnose.matching import name_test  # only runs with a failure pay for it

            named = name_test(outcome, self.catalogue.values())
            add_to_text(report, [_entry(failure) for failure in named])
        item.stash[CONCLUDED] = outcome, tuple(failure.id for failure in named)

    def _is_hardware_test(self, item: pytest.Item) -> bool:
        """Whether a test computes on the hardware of the run: marked so, or by a fixture that does where GPUs are."""
        marked = item.get_closest_marker("hw") is not None
        return marked or (
            self.profile_id not in (None, "cpu") and any(fixture.hardware for fixture in asked_by(item).values())
        )

    def documented(self, item: pytest.Item, outcome: Outcome) -> bool:
        """Whether an outcome bears a signature of the failure that a test is about."""
        side = self.side(item)
        return side is not None and bears(outcome, side.failure)

    def _judge(self, item: pytest.Item, side: Side, outcome: Outcome, report: pytest.TestReport) -> None:
        failure = side.failure
        judgement = judge(
            side.name,
            outcome,
            failure,
            expected=side.expected or failure.expects(self.profile.id, self.stack),
            gone=failure.gone(self.stack),
            strict=self.settings.strict,
            promised=item.get_closest_marker("hw") is not None and self.unavailable(item) is None,
        )
        if judgement is None:
            properties.add(report, note=outcome.mistake or f"in set-up: {first_line(outcome)}")
            add_to_text(report, [("no verdict", outcome.mistake or "the test did not come as far as the act")])
            return
        _mark(report, judgement, item)
        properties.add(
            report,
            failure=failure.id,
            side=side.name,
            verdict=judgement.verdict.value,
            note=judgement.note,
            subject=self.subject(item) or "",
            components=",".join(failure.components),
            fidelity=fidelity.of_test(side.fidelity, stand_ins=properties.read(report).get("stand_ins", "")),
        )


def _entry(failure: catalogue.Failure) -> tuple[str, str]:
    """A titled text for a failed test that bears a documented signature."""
    lines = [failure.title, f"seen on: {failure.seen_on}", f"cause: {failure.cause}", f"remedy: {failure.remedy}"]
    return f"this looks like {failure.id}", "\n".join(lines)


def _mark(report: pytest.TestReport, judgement: Judgement, item: pytest.Item) -> None:
    """Make a report's outcome agree with the verdict, keeping what was seen as a section."""
    if report.skipped and not judgement.fails:
        return
    if judgement.verdict is Verdict.UNAVAILABLE and not judgement.fails:
        report.sections.append(("what came out", report.longreprtext))
        make_skipped(report, item, judgement.note)
    elif report.failed and not judgement.fails:
        report.sections.append((f"{judgement.verdict}: what came out", report.longreprtext))
        report.outcome, report.longrepr = "passed", None
    elif judgement.fails:
        if report.failed:
            report.sections.insert(0, (judgement.verdict.value, judgement.note))
        else:
            report.outcome, report.longrepr = "failed", f"{judgement.verdict}: {judgement.note}"


def _usage(ask: Callable[[], T]) -> T:
    """Turn errors of packages that know no pytest into usage errors (exit 4)."""
    try:
        return ask()
    except (catalogue.CatalogueError, hardware.HardwareError, stack.StackError, subjects.SubjectError) as error:
        raise pytest.UsageError(str(error)) from None
