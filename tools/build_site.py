"""Builds docs/ as a static site with a search: ``make site``. A broken link fails it.

The pages are those of docs/, and README, CONTRIBUTING and CHANGELOG beside them. The navigation is what docs/README.md
lists, with the groups of docs/failures/README.md. A link to another file of the repository leads to GitHub, if
GITHUB_REPOSITORY says where that is, as in a workflow; elsewhere its text stays.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
DOCS = CHECKOUT / "docs"
START, INDEX = DOCS / "README.md", DOCS / "failures" / "README.md"
#: The pages outside of docs/, by their place on the site.
OUTSIDE = {CHECKOUT / f"{name.upper()}.md": f"{name}.md" for name in ("readme", "contributing", "changelog")}
OUTSIDE[CHECKOUT / "README.md"] = "overview.md"

_CODE_OR_LINK = re.compile(
    r"(?s:^```.*?^```$)|^ {4}.*?$|`[^`\n]+`|\[(?P<words>(?:[^\[\]]|`[^`]*`)*)\]\((?P<address>[^)\s]+)\)", re.MULTILINE
)
_ITEM = re.compile(r"^## (.+)$|^- \[(.+)\]\(([^)\s#]+)\)", re.MULTILINE)

CONFIGURATION: dict[str, Any] = {
    "site_name": "pytest-rlregress",
    "theme": {
        "font": False,  # no request to another host
        "features": ["navigation.indexes", "navigation.top", "search.highlight", "content.code.copy"],
        "palette": [
            {"media": f"(prefers-color-scheme: {name})", "scheme": scheme}
            for name, scheme in (("light", "default"), ("dark", "slate"))
        ],
    },
    "markdown_extensions": [
        "tables",
        "md_in_html",
        "pymdownx.superfences",
        "pymdownx.highlight",
        {"toc": {"permalink": True, "slugify": {"object": "pymdownx.slugs.slugify", "kwds": {"case": "lower"}}}},
    ],
}


def list_pages() -> dict[Path, str]:
    """List every page: its file, and its place on the site."""
    return {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))} | OUTSIDE


def make_navigation() -> list[dict[str, Any]]:
    """Return the sections of docs/README.md with their pages; the failures in their groups."""
    index = list_pages()[INDEX]
    sections = _read_sections(START)
    for section in sections:
        for entries in section.values():
            for entry in entries:
                for title in [title for title, place in entry.items() if place == index]:
                    entry[title] = [index, *_read_sections(INDEX)]
    return [{"Home": list_pages()[START]}, *sections]


def _read_sections(listing: Path) -> list[dict[str, list[dict[str, Any]]]]:
    """Read the headings of a page that lists others, each with the pages that are listed below it."""
    sections: list[tuple[str, list[dict[str, Any]]]] = []
    for heading, title, link in _ITEM.findall(listing.read_text(encoding="utf-8")):
        if heading:
            sections.append((heading, []))
        else:
            place = list_pages()[(listing.parent / link).resolve()]
            sections[-1][1].append({title.replace("`", ""): place})
    return [{heading: entries} for heading, entries in sections if entries]


def stage(folder: Path, repository: str = "") -> None:
    """Copy the pages into a folder, with links that hold on the site.

    Args:
        folder: Where to.
        repository: The address of the repository's files, as ``https://github.com/OWNER/NAME/blob/COMMIT``.

    Raises:
        SystemExit: A link's target does not exist.
    """
    places = list_pages()
    for page, place in places.items():

        def move(found: re.Match[str], page: Path = page, place: str = place) -> str:
            words, address = found["words"], found["address"]
            if address is None:  # code: a file's name becomes its title
                return re.sub(r"^```(\w+) file=(\S+)", r'```\1 title="\2"', found[0])
            name, mark, anchor = address.partition("#")
            target = (page.parent / name).resolve()
            if "://" in name or not name:
                return found[0]
            if not target.exists():
                raise SystemExit(f"{page.relative_to(CHECKOUT)}: the link to {address} leads nowhere")
            if target in places:
                return f"[{words}]({os.path.relpath(places[target], os.path.dirname(place))}{mark}{anchor})"
            return f"[{words}]({repository}/{target.relative_to(CHECKOUT)})" if repository else words

        copy = folder / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_CODE_OR_LINK.sub(move, page.read_text(encoding="utf-8")), encoding="utf-8")


def build(folder: Path) -> int:
    """Write the site to ``folder``/site; return the generator's exit code."""
    repository = ""
    if name := os.environ.get("GITHUB_REPOSITORY"):  # in a workflow of GitHub's
        repository = f"{os.environ['GITHUB_SERVER_URL']}/{name}/blob/{os.environ['GITHUB_SHA']}"
    shutil.rmtree(folder / "pages", ignore_errors=True)
    stage(folder / "pages", repository)
    configuration = {**CONFIGURATION, "docs_dir": "pages", "site_dir": "site", "nav": make_navigation()}
    (folder / "mkdocs.yml").write_text(json.dumps(configuration))  # JSON is YAML
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run([program, "build", "--strict", "--clean"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
