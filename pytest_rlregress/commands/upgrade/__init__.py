"""``rlregress upgrade``: may I upgrade? docs/upgrade.md has the promises.

In the order of a preview:

``upgrade_command``  the options, and what the exit codes mean
``preview``          the upgrade is planned, built, tried; the largest safe set; the answer
``plan``             what is asked for, resolved; who forbids what cannot be installed here
``comparison``       what the tests say before and after: pure
``answer``           the answer's parts, told in sentences and sections

How environments are built and tests run in them is in ``pytest_rlregress.trials``,
as for ``rlregress bisect``.
"""
