"""Try sets of packages: an environment for each, the same tests in it, and what came out. Serves bisect and upgrade.

``options``             the options that every command with trials has
``context``             what such a command works with: tests, settings, environments; prints its answer
``runner``              candidates; tries one: its environment, its runs; never the same one twice
``pytest_run``          runs the tests in an environment
``trial_plugin``        pytest's side of that: records what came out
``trial``               a lock and the records of its runs; the folder from which the same command resumes
``failure_comparison``  whether what came out is the failure of another run: pure
``search``              what to try next, from what is known: pure
``progress``            one line for every trial while it goes on
``document``            an answer that is told: as text, Markdown and JSON, redacted
"""
