"""``rlregress bisect``: which upgrade broke a test. docs/bisect.md has the promises.

In the order of a bisect:

``bisect_command``  the options, and what the exit codes mean
``dispatch``        which kind of bisect it is; prints the answer
``context``         what every kind works with: tests, settings, environments, journal
``one_package``     which release of one package
``two_locks``       which of many changed packages, then which release of each
``revisions``       which commit of a checkout: git's own bisect, with the same test
``flip``            the test that is good at one end and bad at the other: pure
``follow``          that test at each candidate
``search``          what to try next, from what is known: pure
``build_answer``    the answer, from what was found

Packages: ``trials`` tries a candidate, ``checkout`` is a git checkout under bisect, ``answers`` is what is shown.
"""
