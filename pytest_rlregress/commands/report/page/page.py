"""Render night and history as one HTML page that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlregress.commands.report.judgement import headline
from pytest_rlregress.commands.report.judgement.facts import Night
from pytest_rlregress.commands.report.judgement.kinds import Kind
from pytest_rlregress.commands.report.page import evidence, formatting, plots, tables
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.fidelity import FIDELITIES
from pytest_rlregress.failures.verdicts import Verdict

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_rlregress.commands.report.history.store import History

_HERE = Path(__file__).parent
#: Rows of each table, the most telling first; the page says how many more there are.
_MOST = 100


def render(night: Night, history: History, now: datetime.datetime) -> str:
    """Render the page of a night.

    Args:
        night: What is told.
        history: All runs, for the plots and the evidence.
        now: With a time zone.
    """
    import jinja2

    known = catalogue.load([catalogue.SHIPPED])
    cases, more_cases = evidence.cases(night, history, known)
    anchors = {(case.point.run.platform, case.test): case.anchor for case in cases}
    metrics = plots.metrics_of(history.runs)
    newest = max(history.runs, key=lambda run: run.start, default=None)
    styles, script = _text("style.css"), _text("script.js")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        night=night,
        headline=headline.of_night(night),
        newest=newest,
        now=now,
        late=formatting.late(night, newest.night if newest else None, now),
        grid=tables.grid(night, {name: failure.title for name, failure in known.items()}, anchors),
        changed=tables.changed(night, anchors),
        compared=tables.compared(night),
        plots=plots.make_plots(history.runs, metrics),
        geometry=plots,
        kinds=[kind for kind in Kind if kind in {change.kind for change in night.changes}],
        all_kinds=tuple(Kind),
        flake=Kind.FLAKE,
        cases=cases,
        more_cases=more_cases,
        anchors=anchors,
        formatting=formatting,
        verdicts=tuple(Verdict),
        fidelities=FIDELITIES,
        tables=tables,
        metrics=metrics,
        most=_MOST,
        policy=_policy(styles, script),
        styles=styles,
        script=script,
    )
    return page.encode(errors="replace").decode()  # the path of a record may be no text


def _text(name: str) -> Markup:
    from markupsafe import Markup

    return Markup((_HERE / name).read_text(encoding="utf-8"))


def _policy(styles: str, script: str) -> str:
    """A Content-Security-Policy: exactly the page's own style and script, and nothing from anywhere."""
    own = f"style-src {_hash(styles)}; script-src {_hash(script)}"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
