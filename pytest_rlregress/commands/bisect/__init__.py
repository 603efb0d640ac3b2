"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

In the order of a bisect:

``bisect_command``  the options, what the exit codes mean, and which kind is asked for
``releases``        which release of one package; what every kind holds fixed, and how its answer is built
``locks``           which of many upgrades between two locks
``checkout``        which commit of a checkout, in a worktree of its own
``follow``          the test that is good at one end and bad at the other, and where between them it flips
``answer``          the answer, told in sentences and sections

How candidates are tried is in ``pytest_rlregress.trials``.
"""
