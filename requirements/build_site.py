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

_CODE = re.compile(r"^```.*?^```$|^ {4}.*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"^## (.+)$|^- \[(.+)\]\(([^)\s#]+)\)", re.MULTILINE)

CONFIGURATION: dict[str, Any] = {
    "site_name": "pytest-rlregress",
    "theme": {
        "font": False,  # no request to another host
        "features": ["navigation.indexes", "navigation.top", "search.highlight", "content.code.copy"],
        "palette": [
            {"media": f"(prefers-color-scheme: {name})", "scheme": scheme, "toggle": {"icon": icon, "name": toggle}}
            for name, scheme, icon, toggle in (
                ("light", "default", "lucide/sun", "Switch to dark mode"),
                ("dark", "slate", "lucide/moon", "Switch to light mode"),
            )
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


def pages() -> dict[Path, str]:
    """Return every page: its file, and its place on the site."""
    return {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))} | OUTSIDE


def navigation() -> list[dict[str, Any]]:
    """Return the sections of docs/README.md with their pages; the failures in their groups."""
    sections = _listed(START)
    for section in sections:
        for entries in section.values():
            for number, entry in enumerate(entries):
                if pages()[INDEX] in entry.values():
                    (title,) = entry
                    entries[number] = {title: [pages()[INDEX], *_listed(INDEX)]}
    return [{"Home": pages()[START]}, *sections]


def _listed(index: Path) -> list[dict[str, list[dict[str, Any]]]]:
    """Return the headings of a page that lists others, each with the pages that are listed below it."""
    sections: list[dict[str, list[dict[str, Any]]]] = []
    for heading, title, link in _ITEM.findall(index.read_text(encoding="utf-8")):
        if heading:
            sections.append({heading: []})
        else:
            (entries,) = sections[-1].values()
            entries.append({title.replace("`", ""): pages()[(index.parent / link).resolve()]})
    return [section for section in sections if any(section.values())]


def stage(folder: Path, repository: str = "") -> None:
    """Copy the pages into a folder, with links that hold on the site.

    Args:
        folder: Where to.
        repository: The address of the repository's files, as ``https://github.com/OWNER/NAME/blob/COMMIT``.

    Raises:
        SystemExit: A link's target does not exist.
    """
    for page, place in pages().items():
        text = page.read_text(encoding="utf-8")
        copy = folder / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(_with_links(page, text, repository), encoding="utf-8")


def _with_links(page: Path, text: str, repository: str) -> str:
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_LINK.sub(lambda link: _moved(page, link, repository), text[end : code.start()])]
        parts += [re.sub(r"^```(\w+) file=(\S+)", r'```\1 title="\2"', code[0])]
        end = code.end()
    return "".join([*parts, _LINK.sub(lambda link: _moved(page, link, repository), text[end:])])


def _moved(page: Path, link: re.Match[str], repository: str) -> str:
    words, address = link.groups()
    name, mark, anchor = address.partition("#")
    if "://" in name or not name:
        return link[0]
    target = (page.parent / name).resolve()
    if not target.exists():
        raise SystemExit(f"{page.relative_to(CHECKOUT)}: the link to {address} leads nowhere")
    if target in pages():
        beside = os.path.relpath(pages()[target], os.path.dirname(pages()[page]))
        return f"[{words}]({beside}{mark}{anchor})"
    return f"[{words}]({repository}/{target.relative_to(CHECKOUT)})" if repository else words


def repository() -> str:
    """Return the address of this commit's files on GitHub, if a workflow of GitHub's runs this."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ['GITHUB_SERVER_URL']}/{name}/blob/{os.environ['GITHUB_SHA']}"
    return ""


def build(folder: Path) -> int:
    """Write the site to ``folder``/site; returns the generator's exit code."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    stage(folder / "pages", repository())
    configuration = {**CONFIGURATION, "docs_dir": "pages", "site_dir": "site", "nav": navigation()}
    (folder / "mkdocs.yml").write_text(json.dumps(configuration))  # JSON is YAML
    return subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=folder
    ).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
