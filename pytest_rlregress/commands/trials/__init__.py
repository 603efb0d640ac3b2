"""Try sets of packages: an environment for each, the same tests in it, and what came out. Serves bisect and upgrade.

``context``       the options that such commands share, the tests that were named; prints the answer
``trial``         candidates; tries one, its environment and its runs; a folder keeps them: none is tried twice
``pytest_run``    one run of the tests in an environment, and what came out
``trial_plugin``  pytest's side of that: records what came out
``upgrades``      what changed between two locks, in units that can only be moved together
"""
