"""Imported by the warm server, loads the catalogue: that is most of what a child without a stack would cost."""

from __future__ import annotations

import contextlib

from pytest_rlregress.failures import catalogue

with contextlib.suppress(catalogue.CatalogueError):  # the pytest process meets the same, and reports it
    catalogue.load([catalogue.SHIPPED])
