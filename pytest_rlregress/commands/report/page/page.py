"""Render night and history as one HTML page that needs no network and no script."""

from __future__ import annotations

import base64
import datetime
import hashlib
from pathlib import Path

from pytest_rlregress.commands.report.page import plots, tables
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.fidelity import FIDELITIES
from pytest_rlregress.failures.verdicts import Rank, Verdict, rank
from pytest_rlregress.records import stories
from pytest_rlregress.records.answer import count_side
from pytest_rlregress.records.changes import QUIET, Kind
from pytest_rlregress.records.corridors import BASELINE
from pytest_rlregress.records.history import History
from pytest_rlregress.records.night import Night
from pytest_rlregress.util.text import plural

_HERE = Path(__file__).parent
#: Lines of each list, the most telling first; the page says how many more there are.
_MOST = 100
#: How a verdict, or pytest's word, is drawn.
_TONES = {Rank.NOTHING: "quiet", Rank.GOOD: "good", Rank.DOCUMENTED: "documented", Rank.FAILING: "bad"}
#: And how a kind of change is.
_KIND_TONES = {Kind.REGRESSION: "bad", Kind.REPAIRED: "good", **dict.fromkeys(QUIET, "quiet")}


def render(night: Night, history: History, now: datetime.datetime) -> str:
    """Render the page of a night.

    Args:
        night: What is told.
        history: All runs, for the plots and the evidence.
        now: With a time zone.
    """
    import jinja2
    from markupsafe import Markup

    known = catalogue.load([catalogue.SHIPPED])
    cases, more_cases = tables.find_cases(night, history, known)
    anchors = {(case.point.run.platform, case.test): case.anchor for case in cases}
    styles = (_HERE / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        night=night,
        now=now.astimezone(datetime.UTC),
        stories=stories.tell_stories(night.changes),
        told=stories,
        count_side=count_side,
        rows=tables.make_rows(night, {name: failure.title for name, failure in known.items()}, anchors),
        plots=plots.make_plots(history.runs),
        geometry=plots,
        all_kinds=tuple(Kind),
        cases=cases,
        more_cases=more_cases,
        anchors=anchors,
        tone=lambda word: _TONES[rank(word)],
        kind_tone=lambda kind: _KIND_TONES.get(kind, "warn"),
        duration=_format_duration,
        plural=plural,
        baseline_nights=BASELINE,
        verdicts=tuple(Verdict),
        fidelities=FIDELITIES,
        most=_MOST,
        # Exactly the page's own style, and nothing from anywhere.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        styles=Markup(styles),
    )
    return page.encode(errors="replace").decode()  # the path of a record may be no text


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
