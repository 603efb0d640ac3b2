"""The lines of logs in the documents that the first failures were taken from: beside each, in its ``logs.toml``."""

from __future__ import annotations

import tomllib

from pytest_rlregress.failures.catalogue import SHIPPED

SOURCE = "the first document"
#: By failure.
TRANSCRIPTS = {
    path.parent.name.replace("_", "-"): log["text"]
    for path in sorted(SHIPPED.glob("*/*/logs.toml"))
    for log in tomllib.loads(path.read_text(encoding="utf-8"))["log"]
    if log["source"] == SOURCE
}
