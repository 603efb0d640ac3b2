"""Reads logs: without escape sequences and prefixes, for an engine's errors, for Ray processes that died.

``ansi``    text without escape sequences
``lines``   one line without what launchers and loggers add
``engine``  errors of an inference server, and what takes one back
``ray``     workers and daemons of a Ray session that died
``watched`` the logs that a test depends on: stalls, last lines, what Ray's workers died of
"""
