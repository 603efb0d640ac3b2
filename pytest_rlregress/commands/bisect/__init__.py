"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

In the order of a bisect:

``bisect_command``  the options, what the exit codes mean, and which kind is asked for
``kinds``           which release of one package, or which of many changed packages; builds the answer
``checkout``        which commit of a checkout, in a worktree of its own
``needs``           what environments hold: what the tests need of this one, found out by running them here once
``follow``          the test that is good at one end and bad at the other, and where between them it flips
``answer``          the answer, told in sentences and sections

How candidates are tried is in ``pytest_rlregress.commands.trials``.
"""
