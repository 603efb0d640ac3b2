"""The pages of the site: each is in the navigation once, and each link leads somewhere."""

from __future__ import annotations

import importlib

import pytest
from installed import CHECKOUT


@pytest.fixture
def build_site(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "tools")
    return importlib.import_module("build_site")


def places(entry):
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        return [entry]
    entries = entry.values() if isinstance(entry, dict) else entry
    return [place for one in entries for place in places(one)]


def test_the_navigation_has_every_page_once(build_site):
    assert sorted(places(build_site.make_navigation())) == sorted(build_site.list_pages().values())


def test_keeps_links_between_pages_and_points_others_to_the_repository(build_site, tmp_path):
    build_site.stage(tmp_path, "https://example.org/blob/1")
    staged = "".join((tmp_path / page).read_text() for page in ("fixtures.md", "overview.md", "contributing.md"))
    assert "](https://example.org/blob/1/examples/fixtures/models)" in staged
    assert "](diagnose.md)" in staged
    assert "](docs/" not in staged
    assert "](../" not in staged


def test_keeps_only_the_words_of_a_link_without_a_repository(build_site, tmp_path):
    build_site.stage(tmp_path)
    assert "lists. examples\n" in (tmp_path / "fixtures.md").read_text()


def test_broken_link_ends_the_build(build_site, monkeypatch, tmp_path):
    (tmp_path / "README.md").write_text("[gone](gone.md)")
    monkeypatch.setattr(build_site, "CHECKOUT", tmp_path)
    monkeypatch.setattr(build_site, "list_pages", lambda: {tmp_path / "README.md": "README.md"})
    with pytest.raises(SystemExit, match=r"^README\.md: the link to gone\.md leads nowhere$"):
        build_site.stage(tmp_path / "staged")
