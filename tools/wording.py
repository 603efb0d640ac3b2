"""Find wording that readers had to read twice, and say what to write instead; exit code 1 if there is any."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

#: What to write instead, by the pattern of what not to write.
BETTER = {
    r"(?<!there\s)(?<!There\s)\b(?:is|are|was|were)\s+none\b(?!\s+of\b)": "isn't a …, isn't one",
    r"\b(?:has|have)\s+not(?=[.,;:)\"`]|\s+(?:the|a|an|its|their|any)\b)": "doesn't have",
    r"\banew\b": "again",
    r"\b(?:lies?|lay)\s+(?:in|beside|below|there)\b(?!\s\[)": "is in, is beside, is below",
    r"\bmay\s+go\b(?!\s+(?:on|to)\b)": "can be removed, may be downgraded",
    r"(?<!there\s)(?<!There\s)\b(?:is|are)\s+no\s+(?=[a-z])"
    r"(?!(?:longer|more|[a-z]+er|such|different|reason|matter|news|chance|rounding|text)\b)": "isn't a …",
    r"\bfound\s+(?:was|were)\s+(?:no|a|an|the)\b": "no … found",
}
#: Quoted logs, recorded texts, and this file.
QUOTED = re.compile(r"logs\.toml$|^tests/(look_alikes|looked_at_once)/|^tools/wording\.py$")


def find_hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Find the line, the wording and the better wording of each hit, also across a line's end."""
    for pattern, better in BETTER.items():
        for hit in re.finditer(pattern, text):
            yield text.count("\n", 0, hit.start()) + 1, " ".join(hit[0].split()), better


def main() -> int:
    """Print the hits in the files that git tracks."""
    tracked = subprocess.check_output(["git", "ls-files", "*.py", "*.md", "*.toml"], text=True).split()
    paths = [Path(name) for name in tracked if not QUOTED.search(name) and Path(name).is_file()]
    hits = [(path, *hit) for path in paths for hit in find_hits(path.read_text(encoding="utf-8"))]
    for path, line, wording, better in hits:
        print(f"{path}:{line}: {wording!r}: write {better}")
    return int(bool(hits))


if __name__ == "__main__":
    sys.exit(main())
