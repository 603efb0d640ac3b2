"""Attempts to import a package are listed, and nothing else is."""

import contextlib
import importlib.util
import sys

import pytest

from pytest_rlregress.scenarios.dependencies import wheel_index


def by_statement():
    with contextlib.suppress(ImportError):
        import deepspeed  # noqa: F401


def by_name():
    with contextlib.suppress(ImportError):
        importlib.import_module("deepspeed.ops")


@pytest.mark.parametrize("how", [by_statement, by_name])
@pytest.mark.parametrize("installed", [True, False], ids=["installed", "left-out"])
def test_an_import_is_seen_and_a_look_is_not(subject, monkeypatch, tmp_path, installed, how):
    if installed:
        files = {"deepspeed/__init__.py": "", "deepspeed/ops.py": ""}
        wheel = wheel_index.wheel(tmp_path, "deepspeed", "0.18.0", files=files)
        wheel_index.put_in_front(monkeypatch, wheel, "deepspeed")
    finders = sys.meta_path
    monkeypatch.setattr(sys, "meta_path", [finders[-1], *finders])  # the one that finds it, before all others
    with subject("deepspeed") as attempts:
        importlib.util.find_spec("deepspeed")
        assert attempts == [], "looking whether it is there is no import"
        how()
    line = how.__code__.co_firstlineno + 2
    assert attempts == [f"{__file__}:{line}"]
    assert "deepspeed" in sys.modules or not installed, "it does not only watch"


def test_watches_one_package_until_the_end_of_the_block(subject, monkeypatch):
    before = list(sys.meta_path)
    with contextlib.suppress(KeyError), subject("deepspeed") as attempts:
        with contextlib.suppress(ImportError):
            importlib.import_module("deepspeed_of_another_name")
        raise KeyError
    assert sys.meta_path == before
    by_statement()
    assert attempts == []
    monkeypatch.setitem(sys.modules, "deepspeed", contextlib)
    with pytest.raises(RuntimeError, match="deepspeed is imported already"), subject("deepspeed"):
        pass
