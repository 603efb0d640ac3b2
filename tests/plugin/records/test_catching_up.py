"""Under xdist a run without --hw is opened by the first verdict: what failed before is in its answer too."""

from __future__ import annotations


def test_answer_includes_a_failure_before_the_first_verdict(pytester):
    pytester.makepyfile(
        test_a="def test_it(): assert 0",
        test_b="import pytest\n\n\n@pytest.mark.needs('numpy')\ndef test_it(): pass",
    )
    result = pytester.runpytest_subprocess("-n1", "-p", "no:randomly")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["FAILED on *1 other test failed: *"])
