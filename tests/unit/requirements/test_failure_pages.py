"""docs/failures: a page for each failure, which one finds who has an error text, and an index of all of them."""

from __future__ import annotations

import importlib
import re

import pytest
from installed import CHECKOUT

from pytest_rlregress.failures import catalogue

FOLDER = CHECKOUT / "docs" / "failures"


@pytest.fixture
def written(monkeypatch):
    monkeypatch.syspath_prepend(CHECKOUT / "requirements")
    return importlib.import_module("failure_pages").pages()


def test_the_pages_are_those_of_the_catalogue(written):
    assert {path.name: path.read_text() for path in FOLDER.glob("*.md")} == written, "run `make docs`"


def test_the_index_has_every_failure_once(written):
    listed = re.findall(r"^- \[.+\]\((.+)\.md\)", written["README.md"], re.MULTILINE)
    assert sorted(listed) == sorted(catalogue.load([catalogue.SHIPPED]))


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("unrecognised-model-type", ["KeyError: "]),
        ("fork-after-cuda", ["Cannot re-initialize CUDA in forked subprocess"]),
        ("partial-weight-sync", ["Nothing: no error, no warning.", "import load_checked", "/vllm/issues/52689)"]),
        ("stalled-rollout", ["Nothing goes on"]),
        ("apex-missing", ["rlregress diagnose train.log", "It has no tests"]),
    ],
)
def test_a_page_has_what_one_sees_and_what_to_do(written, failure, words):
    assert [word for word in words if word not in written[f"{failure}.md"]] == []
