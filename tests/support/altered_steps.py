"""Shared by the tests of altered training steps: an alteration turns the property meant for it red, before others."""

from __future__ import annotations

import functools
import pkgutil
import re


def assert_red(records, wanted, tolerance, compared="mean"):
    """Assert that the first complaint is of the last step and is wanted: "PROPERTY|PROPERTY" or "PROPERTY: TEXT"."""
    from pytest_rlregress.fixtures.step_record import check, find_complaints

    *sound, altered = records
    if sound:
        check(sound, len(sound), tolerance, compared)
    properties, _, text = wanted.partition(": ")
    name, complaint = next(find_complaints(altered, tolerance, compared), ("none", ""))
    assert name in properties.split("|"), f"{name}: {complaint}"
    assert re.search(text, complaint), complaint


def alters(target):
    """Make of ``change(sound, *arguments)`` a function that puts it in the place of ``target``, "MODULE:NAME"."""

    def make(change):
        @functools.wraps(change)
        def put():
            module, _, place = target.partition(":")
            *owners, name = place.split(".")
            owner = pkgutil.resolve_name(f"{module}:{'.'.join(owners)}")
            sound = getattr(owner, name)
            setattr(owner, name, lambda *arguments, **named: change(sound, *arguments, **named))

        return put

    return make
