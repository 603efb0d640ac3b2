from types import SimpleNamespace

from mutants import broken, fails, replaces
from pytest_rlregress.remedies.rewards import math_scores


@broken(only="test_each_answer")
def any_exception_is_a_zero(answers, solutions, seconds):
    from math_verify import parse, verify

    scores = []
    for answer, solution in zip(answers, solutions, strict=True):
        try:
            scores.append(float(verify(parse(solution), parse(answer))))
        except Exception:
            scores.append(0.0)
    return SimpleNamespace(scores=scores, errors={})


@broken(only="test_each_answer")
def errors_are_wrong_answers(answers, solutions, seconds):
    judged = math_scores(answers, solutions, seconds)
    return SimpleNamespace(scores=[score or 0.0 for score in judged.scores], errors=judged.errors)


replaces("absent", "math_verify.parser.timeout", only="test_parse_in_a_thread")(
    lambda timeout_seconds: lambda function: function
)
replaces("changed", "math_verify.parse", only="test_parse_in_a_thread")(fails)
