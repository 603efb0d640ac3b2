"""Mutants of scenarios/batch: rewards."""

from __future__ import annotations

from types import SimpleNamespace

from mutants import broken, mutant
from mutants.batch import fails
from pytest_rlregress.remedies.rewards import math_scores, reward_of_policy


@broken("math-verify-zero-reward", only="test_each_answer")
def any_exception_is_a_zero(answers, solutions, seconds):
    from math_verify import parse, verify

    scores = []
    for answer, solution in zip(answers, solutions, strict=True):
        try:
            scores.append(float(verify(parse(solution), parse(answer))))
        except Exception:
            scores.append(0.0)
    return SimpleNamespace(scores=scores, errors={})


@broken("math-verify-zero-reward", only="test_math_verify_raises")
def errors_are_wrong_answers(answers, solutions, seconds):
    judged = math_scores(answers, solutions, seconds)
    return SimpleNamespace(scores=[score or 0.0 for score in judged.scores], errors=judged.errors)


@broken("math-verify-zero-reward", only="test_math_verify_raises")
def wrong_answers_left_out(answers, solutions, seconds):
    judged = math_scores(answers, solutions, seconds)
    return SimpleNamespace(scores=[score or None for score in judged.scores], errors=judged.errors)


@broken("math-verify-zero-reward", only="test_math_verify_raises")
def errors_not_counted(answers, solutions, seconds):
    return SimpleNamespace(scores=math_scores(answers, solutions, seconds).scores, errors={})


@broken("math-verify-zero-reward", only="test_worker_is_killed")
def lost_worker_is_not_replaced(answers, solutions, seconds):
    judged = math_scores(answers, solutions, seconds)
    lost = min(judged.errors, default=len(answers))
    return SimpleNamespace(scores=[*judged.scores[:lost], *[None] * (len(answers) - lost)], errors=judged.errors)


@broken("math-verify-zero-reward", only="test_as_many")
def cut_to_the_shorter_list(answers, solutions, seconds):
    return math_scores(answers[: len(solutions)], solutions, seconds)


@broken("math-verify-zero-reward", only="test_math_verify_is_missing")
def nothing_judged_where_it_is_missing(answers, solutions, seconds):
    try:
        return math_scores(answers, solutions, seconds)
    except RuntimeError as error:
        return SimpleNamespace(scores=[None] * len(answers), errors=dict.fromkeys(range(len(answers)), str(error)))


@mutant("math-verify-zero-reward", "absent", only="test_parse_in_a_thread")
def no_alarm_in_threads(monkeypatch):
    import math_verify.parser

    monkeypatch.setattr(math_verify.parser, "timeout", lambda timeout_seconds: lambda function: function)


@mutant("math-verify-zero-reward", "absent", only="test_verl_score")
def verl_renews_its_pool(monkeypatch):
    """A pool that outlives what happens to its workers."""
    from concurrent.futures import ThreadPoolExecutor

    from verl.utils.reward_score import math_verify as verl_score

    from pytest_rlregress.scenarios.batch.math_verify_zero_reward import test_math_verify_zero_reward as scenario

    monkeypatch.setattr(scenario, "lose_a_worker", lambda pool: None)
    monkeypatch.setattr(verl_score, "_get_pool", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(verl_score, "_verify_in_subprocess", lambda truth, answer: float("\\frac{1}{2}" in answer))


@mutant("math-verify-zero-reward", "changed", only="test_parse_in_a_thread")
def parse_fails_otherwise(monkeypatch):
    import math_verify

    monkeypatch.setattr(math_verify, "parse", fails)


@broken("tool-output-in-reward", only="test_answer_of_the_policy")
def all_that_is_there(manager, data, pad_token_id):
    return manager(data)


@broken("tool-output-in-reward", only="test_answer_of_the_policy")
def tool_alone(manager, data, pad_token_id):
    data.batch["response_mask"] = data.batch["attention_mask"][:, 3:] - data.batch["response_mask"]
    return reward_of_policy(manager, data, pad_token_id)


@broken("tool-output-in-reward", only="test_any_responses")
def where_the_shorter_response_ends(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    moved = rewards.clone().zero_()
    for row, mask in enumerate(data.batch["response_mask"]):
        moved[row, mask.sum() - 1] = rewards[row].sum()
    return moved


@broken("tool-output-in-reward", only="test_any_responses")
def tools_tokens_as_padding(manager, data, pad_token_id):
    """Decoded, padding in the middle is skipped; but the attention mask ends early."""
    copied = data[list(range(len(data)))]
    copied.batch["responses"] = data.batch["responses"].masked_fill(data.batch["response_mask"] == 0, pad_token_id)
    width = data.batch["responses"].shape[-1]
    copied.batch["attention_mask"][:, -width:] = data.batch["response_mask"]
    return manager(copied)


@broken("tool-output-in-reward", only="test_any_responses")
def given_batch_changed(manager, data, pad_token_id):
    rewards = reward_of_policy(manager, data, pad_token_id)
    data.batch["token_level_scores"] = rewards
    return rewards


@broken("tool-output-in-reward", only="test_any_responses")
def last_turn_alone(manager, data, pad_token_id):
    copied = data[list(range(len(data)))]
    for mask in copied.batch["response_mask"]:
        inside = False
        for index in range(len(mask) - 1, -1, -1):
            if inside and mask[index] == 0:
                mask[:index] = 0
                break
            inside |= bool(mask[index])
    return reward_of_policy(manager, copied, pad_token_id)


def reads_policy_alone(monkeypatch):
    """verl's managers decode what the response mask keeps."""
    from verl.experimental.reward_loop.reward_manager import naive
    from verl.workers.reward_manager import NaiveRewardManager

    call, run = NaiveRewardManager.__call__, naive.NaiveRewardManager.run_single

    def without_tools(data):
        data = data[list(range(len(data)))]
        if "response_mask" in data.batch.keys():  # noqa: SIM118
            mask = data.batch["response_mask"]
            order = (1 - mask).argsort(dim=-1, stable=True)
            data.batch["responses"] = data.batch["responses"].gather(-1, order)
            data.batch["attention_mask"][:, -mask.shape[-1] :] = mask.gather(-1, order)
        return data

    monkeypatch.setattr(NaiveRewardManager, "__call__", lambda self, data: call(self, without_tools(data)))
    monkeypatch.setattr(naive.NaiveRewardManager, "run_single", lambda self, data: run(self, without_tools(data)))


mutant("tool-output-in-reward", "absent")(reads_policy_alone)


@mutant("tool-output-in-reward", "changed")
def scores_fail(monkeypatch):
    from verl.workers.reward_manager import naive

    monkeypatch.setattr(naive, "default_compute_score", fails)
