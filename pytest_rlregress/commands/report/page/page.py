"""Render night and history as one HTML page that needs no network and no script."""

from __future__ import annotations

import base64
import datetime
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlregress.commands.report.judgement import headline, stories
from pytest_rlregress.commands.report.judgement.facts import Night
from pytest_rlregress.commands.report.judgement.kinds import Kind
from pytest_rlregress.commands.report.page import evidence, formatting, plots, tables
from pytest_rlregress.failures import catalogue
from pytest_rlregress.failures.fidelity import FIDELITIES
from pytest_rlregress.failures.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_rlregress.commands.report.history.store import History

_HERE = Path(__file__).parent
#: Lines of each list, the most telling first; the page says how many more there are.
_MOST = 100


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
    cases, more_cases = evidence.cases(night, history, known)
    anchors = {(case.point.run.platform, case.test): case.anchor for case in cases}
    newest = max((run.night for run in history.runs), default=None)
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
        headline=headline.of_night(night),
        now=now,
        late=formatting.late(night, newest, now),
        stories=stories.stories(night.changes),
        told=stories,
        rows=tables.grid(night, {name: failure.title for name, failure in known.items()}, anchors),
        plots=plots.make_plots(history.runs),
        geometry=plots,
        all_kinds=tuple(Kind),
        cases=cases,
        more_cases=more_cases,
        anchors=anchors,
        formatting=formatting,
        verdicts=tuple(Verdict),
        fidelities=FIDELITIES,
        most=_MOST,
        # Exactly the page's own style, and nothing from anywhere.
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        styles=Markup(styles),
    )
    return page.encode(errors="replace").decode()  # the path of a record may be no text
