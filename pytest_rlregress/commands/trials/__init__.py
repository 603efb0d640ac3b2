"""Try sets of packages: an environment for each, the same tests in it, and what came out. Serves bisect and upgrade.

``options``             the options that every command with trials has
``context``             what such a command works with: tests, settings, environments; prints its answer
``trial``               candidates; tries one, its environment and its runs; a folder keeps them: none is tried twice
``pytest_run``          one run of the tests in an environment, and what came out
``trial_plugin``        pytest's side of that: records what came out
``failure_comparison``  whether what came out is the failure of another run: pure
``search``              what to try next, from what is known: pure
``document``            what is printed: a line for every trial, the answer as text, Markdown and JSON, redacted
"""
