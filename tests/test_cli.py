"""The command ``rlregress``."""

from __future__ import annotations

import json

from pytest_rlregress import catalogue
from pytest_rlregress.cli import main


def test_list_names_every_failure_with_its_remedy(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    for failure in catalogue.load([catalogue.SHIPPED]).values():
        assert f"{failure.id}: {failure.title}" in words
        assert " ".join(failure.remedy.split())[:30] in words
    assert all(len(line) <= 100 for line in printed.splitlines())


def test_list_as_json(capsys):
    assert main(["list", "--json", "dataproto-concat-keys"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)
    assert failure["subject"] == "align_batches"


def test_unknown_id(capsys):
    assert main(["list", "dataproto-concat"]) == 2
    printed = capsys.readouterr()
    assert "Did you mean dataproto-concat-keys" in printed.err
    assert not printed.out
