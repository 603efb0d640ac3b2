"""Broken remedies of console-encoding, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import utf8_environment
from pytest_rlregress.scenarios.launch.mutants import run_as


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
