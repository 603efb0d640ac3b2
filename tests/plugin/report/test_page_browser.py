"""The page in a real browser, from disk and without network."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil

import histories
import pytest
from histories import Event

from pytest_rlregress.commands.report.page.page import render
from pytest_rlregress.records.history import open_history
from pytest_rlregress.records.night import judge_night

NOW = datetime.datetime(2026, 11, 20, 8, 30, tzinfo=datetime.UTC)
LAST = 11
GUARDS = [case.name for case in histories.cases(30) if case.side == "guards" and case.word == "held"]
EVENTS = [
    Event("upgrade", LAST - 2, "transformers", "5.11.0"),
    Event("bad", LAST - 2, GUARDS[0], "regressed", platform="h100"),
    Event("bad", 0, GUARDS[2], "hung", platform="cpu"),
    Event("no run", LAST - 6, until=LAST - 4),
]
HOSTILE = "</script><img src=x onerror='window.pwned=1'><!--\u2028" + "long" * 60
CUT = (
    "[...document.querySelectorAll('.scroller')].filter(one => one.scrollWidth > one.clientWidth)"
    ".map(one => one.getAttribute('aria-label'))"
)
OUTSIDE = """[...document.querySelectorAll('.plot :not(title)')].filter(one => {
    const [inner, outer] = [one, one.closest('svg')].map(some => some.getBoundingClientRect());
    return inner.left < outer.left || inner.right > outer.right || inner.top < outer.top || inner.bottom > outer.bottom;
}).map(one => one.outerHTML)"""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing():
    """Why there is no browser here; empty if there is one."""
    try:
        import jinja2
        import playwright.sync_api
    except ImportError as error:
        return str(error)
    _ = jinja2, playwright.sync_api
    return "" if shutil.which("chromium") else "no chromium: apt-get install chromium"


@pytest.fixture(scope="module")
def browser():
    if missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    if missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing())
    folder = tmp_path_factory.mktemp("page")
    files = histories.make(folder / "records", nights=LAST + 1, platforms=("cpu", "h100"), tests=30, events=EVENTS)
    record = json.loads(files[-1].read_text())  # of h100, on the last night
    for test in record["results"]["tests"]:
        if test["name"] == GUARDS[0]:
            test["trace"] = test["message"] = test["extra"]["note"] = HOSTILE
    record["results"]["tests"].append(
        {"name": f"tests/{HOSTILE}", "status": "failed", "rawStatus": "failed", "duration": 3_000_000, "filePath": "x"}
    )
    record["results"]["extra"]["hardware"]["devices"][0]["name"] = HOSTILE
    files[-1].write_text(json.dumps(record))
    history = open_history([folder / "records"])
    file = folder / "report.html"
    file.write_text(render(judge_night(history, expect=["h20"]), history, NOW), encoding="utf-8")
    return file


@contextlib.contextmanager
def opened(browser, file, watch=True, **options):
    """A page in a context of its own; complains of errors, and of requests for anything but the file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    found = page.found = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda request: found.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    try:
        yield page
    finally:
        context.close()
    assert found == [] or not watch


def wider(page):
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_opens_from_disk_and_draws(browser, page_file, scheme):
    with opened(browser, page_file, color_scheme=scheme) as page:
        plots = page.locator("svg.plot")
        assert plots.count() == 2 * 7
        assert page.locator(".plot polyline").count() == 2 * 2 * 7  # broken by the nights without a run
        stroke = page.evaluate("getComputedStyle(document.querySelector('.plot polyline')).stroke")
        assert stroke == {"light": "rgb(37, 99, 184)", "dark": "rgb(127, 176, 240)"}[scheme]
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
        assert re.match("Step time on cpu, 10 runs from", plots.first.get_attribute("aria-label"))
        assert page.evaluate(OUTSIDE) == []
        title = (
            "document.elementsFromPoint(...{}).map(one => one.closest('circle, .change')).find(Boolean)"
            ".querySelector('title').textContent"
        )
        for what, said in (
            ("circle", r"2026-11-\d\d 02:\d\d UTC: \d\.\d+ s"),
            (".change path", "transformers 5.10.4 → 5.11.0"),
        ):
            at = plots.first.locator(what).last
            at.scroll_into_view_if_needed()
            spot = at.bounding_box()
            middle = [spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2]
            assert re.match(said, page.evaluate(title.format(middle)))


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        ('<img src="http://127.0.0.1:9/x.png">', "127.0.0.1:9"),
        ("<script>console.error('so')</script>", "Content Security Policy"),
        ('<p style="color: red">', "Content Security Policy"),
    ],
)
def test_check_notices_requests_and_errors_of_a_page(browser, page_file, tmp_path, addition, complaint):
    file = tmp_path / "bad.html"
    file.write_text(page_file.read_text(encoding="utf-8").replace("<main", f"{addition}<main"), encoding="utf-8")
    with opened(browser, file, watch=False) as page:
        page.wait_for_timeout(100)
        assert any(complaint in found for found in page.found)


def test_text_from_records_is_inert(browser, page_file):
    with opened(browser, page_file) as page:
        page.locator("#evidence details").first.locator("summary").click()
        assert page.locator("#evidence pre", has_text="</script><img src=x onerror=").count() >= 1
        assert page.locator("#evidence .test", has_text="</script><img").count() == 1
        assert page.locator("img").count() == 0
        assert page.evaluate("window.pwned") is None


def test_check_notices_unescaped_text(browser, page_file, tmp_path):
    file = tmp_path / "bad.html"
    content = page_file.read_text(encoding="utf-8")
    file.write_text(content.replace("&lt;/script&gt;&lt;img", "</script><img").replace("&gt;", ">"), encoding="utf-8")
    with opened(browser, file, watch=False) as page:
        assert page.locator("img").count() > 0
        assert page.found


@pytest.mark.parametrize("width", [1280, 400])
def test_page_fits_the_width_of_the_window(browser, page_file, width):
    with opened(browser, page_file) as page:
        page.set_viewport_size({"width": width, "height": 800})
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert wider(page) == 0
        if width == 400:  # a number that is cut at the edge of a table is another number
            assert page.evaluate(CUT) == []
            page.evaluate("document.querySelector('.grid td').style.cssText = 'white-space: nowrap; font-size: 200px'")
            assert page.evaluate(CUT) != []
        page.evaluate("document.querySelector('main').append('x'.repeat(9))")
        assert wider(page) == 0
        page.evaluate("document.querySelector('.scroller').style.overflow = 'visible'")
        page.evaluate("document.querySelector('.scroller table').style.width = '2000px'")
        assert wider(page) > 0  # it would be noticed


def test_failing_test_links_to_its_evidence(browser, page_file):
    with opened(browser, page_file) as page:
        assert page.locator("#evidence pre:visible").count() == 0
        page.locator("#changes .test a").first.focus()
        page.keyboard.press("Enter")
        page.locator("#evidence-1").wait_for()
        assert page.locator("#evidence pre:visible").count() > 0
        assert page.evaluate("document.querySelector('#evidence-1').getBoundingClientRect().top") < 900


def test_parts_of_the_page_have_accessible_names(browser, page_file):
    with opened(browser, page_file) as page:
        tree = page.locator("body").aria_snapshot()
    for part in ("banner:", "main:", "contentinfo", "navigation "):
        assert re.search(rf"^- {part}", tree, re.MULTILINE) or f"- {part}" in tree
    assert re.search(r'img "Step time on h100, 10 runs', tree)
    assert 'rowheader "' in tree
    assert "did not run" in tree
