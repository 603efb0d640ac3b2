"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

In the order of a bisect:

``bisect_command``  the options, and what the exit codes mean
``dispatch``        which kind of bisect it is; prints the answer
``needs``           what the tests need of this environment: found out by running them here once
``one_package``     which release of one package
``two_locks``       which of many changed packages, then which release of each
``revisions``       which commit of a checkout
``checkout``        commits as candidates: installed, and seen to be what is imported
``worktree``        git, in a worktree of its own
``follow``          the test that is good at one end and bad at the other, and where between them it flips
``build_answer``    the answer, from what was found
``answer``          its parts
``rendering``       the answer, told in sentences and sections

How candidates are tried is in ``pytest_rlregress.commands.trials``.
"""
