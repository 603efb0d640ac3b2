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

from pytest_rlregress.commands.report.history import store
from pytest_rlregress.commands.report.judgement import night
from pytest_rlregress.commands.report.page.page import render

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
    history = store.open_history([folder / "records"])
    file = folder / "report.html"
    file.write_text(render(night.judge_night(history, expect=["h20"]), history, NOW), encoding="utf-8")
    return file


@contextlib.contextmanager
def opened(browser, file, watch=True, script="", address="", **options):
    """A page in a context of its own; complains of errors, and of requests for anything but the file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
    page = context.new_page()
    page.set_default_timeout(30_000)
    found = page.found = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "request", lambda request: found.append(request.url) if request.url.split("#")[0] != file.as_uri() else None
    )
    if script:
        page.add_init_script(script)
    page.goto(f"{file.as_uri()}{address}")
    try:
        yield page
    finally:
        context.close()
    assert found == [] or not watch


def shown(page):
    return page.locator("#shown").inner_text()


def address_of(page):
    """The part of the address after the file; the driver's own idea of it lags behind."""
    return page.evaluate("location.hash")


def rows(page, section):
    return page.locator(f"#{section} [data-row]:visible").count()


def wider(page):
    """By how many pixels the page is wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_disk_and_draws(browser, page_file, scheme):
    with opened(browser, page_file, color_scheme=scheme) as page:
        plots = page.locator("svg.plot")
        assert plots.count() == 2 * 5
        assert page.locator(".plot polyline").count() == 2 * 2 * 5  # broken by the nights without a run
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
def test_a_page_that_reaches_out_or_errs_is_noticed(browser, page_file, tmp_path, addition, complaint):
    file = tmp_path / "bad.html"
    file.write_text(page_file.read_text(encoding="utf-8").replace("<main", f"{addition}<main"), encoding="utf-8")
    with opened(browser, file, watch=False) as page:
        page.wait_for_timeout(100)
        assert any(complaint in found for found in page.found)


def test_what_records_hold_is_inert(browser, page_file):
    with opened(browser, page_file) as page:
        page.locator("#evidence details").first.locator("summary").click()
        assert page.locator("#evidence pre", has_text="</script><img src=x onerror=").count() >= 1
        assert page.locator("#evidence .test", has_text="</script><img").count() == 1
        assert page.locator("img").count() == 0
        assert page.evaluate("window.pwned") is None


def test_without_escaping_it_would_not_be(browser, page_file, tmp_path):
    file = tmp_path / "bad.html"
    content = page_file.read_text(encoding="utf-8")
    file.write_text(content.replace("&lt;/script&gt;&lt;img", "</script><img").replace("&gt;", ">"), encoding="utf-8")
    with opened(browser, file, watch=False) as page:
        assert page.locator("img").count() > 0
        assert page.found


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_as_wide_as_the_window(browser, page_file, width):
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


def test_filters(browser, page_file):
    with opened(browser, page_file) as page:
        everything = int(shown(page).split()[0])
        page.get_by_label("Show", exact=True).select_option(label="only what changed")
        assert rows(page, "verdicts") == 2  # the regression, and the test that is new and fails
        some = shown(page)
        assert re.fullmatch(rf"\d+ of {everything} rows shown", some)
        page.get_by_role("combobox", name="Hardware").select_option("cpu")
        assert rows(page, "verdicts") == 0
        assert page.locator("#verdicts .emptied").is_visible()
        assert page.locator("th[data-col=h100]:visible").count() == 0
        assert page.locator("[data-only][data-hw=h100]:visible").count() == 0
        page.get_by_role("button", name="Reset").click()
        assert shown(page) == f"{everything} rows"
        page.get_by_role("searchbox", name="Text").press_sequentially("transformers 5.11")
        assert rows(page, "evidence") == 1
        assert rows(page, "verdicts") == 0
        page.get_by_role("searchbox", name="Text").fill("qqqq")
        assert shown(page) == f"0 of {everything} rows shown"


def test_the_address_is_the_filter(browser, page_file):
    with opened(browser, page_file) as page:
        page.get_by_label("Show", exact=True).select_option("kind:regression")
        page.get_by_role("combobox", name="Hardware").select_option("h100")
        page.get_by_role("searchbox", name="Text").fill("Über & so")
        page.get_by_role("searchbox", name="Text").fill(GUARDS[0].partition("::")[0])
        address, said = address_of(page), shown(page)
    with opened(browser, page_file, address=address) as page:
        assert shown(page) == said
        assert page.get_by_role("combobox", name="Hardware").input_value() == "h100"
        page.locator("#verdicts .word.bad a:visible").first.click()
        assert page.locator("#evidence-1 .command").first.is_visible()
        assert shown(page) == said
        assert address_of(page).endswith("&at=evidence-1")
        page.go_back()
        assert address_of(page) == address
    with opened(browser, page_file, address="#hw=b200&show=kind:none&q=%C3%9Cber%20%26") as page:
        assert page.get_by_role("combobox", name="Hardware").input_value() == ""  # another night's
        assert page.get_by_role("searchbox", name="Text").input_value() == "Über &"
    with opened(browser, page_file, address="#q=nothing&at=evidence-1") as page:
        assert page.locator("#evidence-1 .command").first.is_visible()  # rather than a link that leads nowhere


def test_it_works_with_the_keyboard(browser, page_file):
    with opened(browser, page_file) as page:

        def focused():
            return page.evaluate("(document.activeElement.id || document.activeElement.textContent).trim()")

        page.keyboard.press("Tab")
        assert focused() == "Skip to the verdicts"
        assert page.locator(".skip").bounding_box()["x"] >= 0
        for _ in range(20):
            page.keyboard.press("Tab")
            if focused() == "q":
                break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.type(GUARDS[0])
        page.keyboard.press("Enter")
        assert "rows shown" in shown(page)
        page.locator("#evidence-1 summary").focus()
        page.keyboard.press("Enter")
        assert page.locator("#evidence-1 .command").first.is_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text("Copied to the clipboard").wait_for()


@pytest.mark.parametrize("script", ["", "delete Navigator.prototype.clipboard"], ids=["clipboard", "no-clipboard"])
def test_copying_a_command(browser, page_file, script):
    with opened(browser, page_file, script=script) as page:
        assert page.evaluate("'clipboard' in navigator") is not bool(script)
        page.locator("#evidence-1 summary").click()
        page.get_by_role("button", name="Copy the bisect that finds the cause").first.click()
        page.get_by_text("Copied to the clipboard").wait_for()
        page.get_by_role("searchbox", name="Text").focus()
        page.keyboard.press("Control+V")
        pasted = page.get_by_role("searchbox", name="Text").input_value()
        assert pasted == page.locator("#evidence-1 .command code").first.text_content()
        assert pasted.startswith("rlregress bisect --from-record")


def test_without_javascript_all_but_the_filter_is_there(browser, page_file):
    with opened(browser, page_file, java_script_enabled=False) as page:
        assert page.locator("#filter").is_hidden()
        assert page.locator(".copy:visible").count() == 0
        assert page.locator("#verdicts .word.bad:visible").count() > 0
        assert page.locator("svg.plot").first.is_visible()
        page.get_by_text("h100 in numbers").click()
        assert page.locator(".numbers:visible tbody tr").count() == 10
        page.locator("#evidence-1 summary").click()
        assert page.locator("#evidence-1 pre").first.is_visible()


def test_the_parts_of_the_page_have_names(browser, page_file):
    with opened(browser, page_file) as page:
        tree = page.locator("body").aria_snapshot()
    for part in ("banner:", "main:", "contentinfo", "search ", "navigation "):
        assert re.search(rf"^- {part}", tree, re.MULTILINE) or f"- {part}" in tree
    assert re.search(r'img "Step time on h100, 10 runs', tree)
    assert 'rowheader "' in tree
    assert "did not run" in tree
