"""Broken remedies of console-encoding, and stacks that differ."""

from __future__ import annotations

import subprocess

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import utf8_environment


def run_as(monkeypatch, changed):
    """Have subprocess.run do what ``changed(command, keywords)`` makes of a call."""
    run = subprocess.run

    def patched(command, **keywords):
        command, keywords = changed(command, keywords)
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", patched)


@broken(only="check-mark-gbk")
def environment_as_it_is(environ):
    return dict(environ)


@broken(only="lone-surrogate-gbk")
def strict_utf8(environ):
    return {**environ, "PYTHONIOENCODING": "utf-8"}


@mutant("absent", only="test_printing_fails")
def consoles_that_take_all(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (command, {**keywords, "env": utf8_environment(keywords["env"])}))


@mutant("changed", only="test_printing_fails")
def an_encoding_nobody_has(monkeypatch):
    said = {"PYTHONIOENCODING": "klingon"}
    run_as(monkeypatch, lambda command, keywords: (command, {**keywords, "env": {**keywords["env"], **said}}))
