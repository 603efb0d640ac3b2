"""docs/safety.md: each of its sentences names the test that holds it."""

from __future__ import annotations

import re

import pytest
from installed import TESTS

DOC = TESTS.parent / "docs" / "safety.md"
SENTENCES = [line for line in DOC.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence[2:40])
def test_sentence_is_held_by_a_test(sentence):
    named = re.search(r"<!-- (tests/[\w/]+\.py)(?:::(test_\w+))? -->$", sentence)
    assert named, "it names no test"
    source = (TESTS.parent / named[1]).read_text(encoding="utf-8")
    assert f"def {named[2] or 'test_'}" in source


def test_page_is_short():
    assert len(SENTENCES) > 20
    assert len(DOC.read_text(encoding="utf-8").splitlines()) <= 60
