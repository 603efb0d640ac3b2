"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

The rooms, in the order of a bisect:

``command``      the options, and what the exit codes mean
``question``     which of the three it is; shows the answer
``workplace``    what all three work with: tests, settings, environments, journal
``one_package``  which release of one package
``two_locks``    which of many changed packages, then which release of each
``revisions``    which commit of a checkout: git's own bisect, with the same test
``case``         the test that is followed, from its failure at the bad end
``ends``         what the two ends say: pure
``search``       what to try next, from what is known: pure
``conclusion``   what was found, put into an answer

What they stand on: ``packages``, ``trials``, ``checkout`` and ``answers``.
"""
