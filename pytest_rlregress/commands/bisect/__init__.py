"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

In the order of a bisect:

``bisect_command``  the options, and what the exit codes mean
``kinds``           which release of one package, or which of many changed packages; prints the answer
``checkout``        which commit of a checkout: installed, and seen to be what is imported
``worktree``        git, in a worktree of its own
``needs``           what environments hold: what the tests need of this one, found out by running them here once
``follow``          the test that is good at one end and bad at the other, and where between them it flips
``build_answer``    the answer, from what was found
``answer``          its parts, told in sentences and sections

How candidates are tried is in ``pytest_rlregress.commands.trials``.
"""
