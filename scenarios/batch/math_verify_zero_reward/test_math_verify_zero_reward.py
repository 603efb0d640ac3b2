import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent
from pytest_rlregress.scenarios.patience import FOR_EVER, measure_patience

RIGHT = ("The answer is $\\frac{1}{2}$.", "$0.5$")
WRONG = ("The answer is $\\frac{1}{3}$.", "$0.5$")
ENDLESS = ("The answer is $9^{9^{9^{9}}}$.", "$4$")
MEANINGLESS = ("The answer is $4$.", "I do not know.")


def in_a_thread(function, *arguments):
    """As agent loops and reward workers call a reward."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *arguments).result()


def lose_a_worker(pool):
    """Kill a worker of the pool that verl keeps for all its scores, as the kernel does where memory is short."""
    pool.submit(time.sleep, 60)
    next(iter(pool._processes.values())).kill()
    while not pool._broken:
        time.sleep(0.01)


@pytest.mark.reproduces("math-verify-zero-reward")
def test_parse_in_a_thread():
    from math_verify import parse

    with act():
        assert in_a_thread(parse, RIGHT[0])


@pytest.mark.reproduces("math-verify-zero-reward", fidelity="injected")
def test_verl_score(monkeypatch):
    from verl.utils.reward_score import math_verify

    monkeypatch.setattr(math_verify, "_pool", None, raising=False)
    if hasattr(math_verify, "_get_pool"):  # verl 0.9 judges in other processes, up to 0.7 in the caller's
        lose_a_worker(math_verify._get_pool())
    with act():
        score = in_a_thread(math_verify.compute_score, "The answer is \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}")
    if score != 1:
        assert score == 0
        silent(f"verl scores a right answer {score}")


@pytest.mark.guards("math-verify-zero-reward")
@pytest.mark.needs("math-verify")
def test_each_answer_is_judged_or_left_out(subject):
    """Right and wrong ones, also behind one that never ends; what cannot be judged is told, and isn't wrong."""
    pairs = [RIGHT, WRONG, ENDLESS, RIGHT, MEANINGLESS, WRONG]
    with act():
        # To judge one takes far less than to start what judges.
        seconds = round(measure_patience(lambda: subject([RIGHT[0]], [RIGHT[1]], FOR_EVER), times=1), 1)
        judged = in_a_thread(subject, *zip(*pairs, strict=True), seconds)
    assert judged.scores == [1.0, 0.0, None, 1.0, None, 0.0]
    assert judged.errors.keys() == {2, 4}
    assert all(judged.errors.values())
    assert f"{seconds} s" in judged.errors[2]


@pytest.mark.guards("math-verify-zero-reward", fidelity="injected")
@pytest.mark.needs("math-verify")
def test_worker_is_killed(subject):
    """What was being judged is told, what comes after it is judged."""
    import psutil

    pairs = [(f"The answer is ${number}$.", f"${number}$") for number in range(4)] + [ENDLESS, RIGHT]
    me, judged = psutil.Process(), []
    before = set(me.children())

    def judging(pairs):
        """Judge in a thread; meanwhile yield each child with the seconds that it has computed."""
        thread = threading.Thread(target=lambda: judged.append(subject(*zip(*pairs, strict=True), 5 * FOR_EVER)))
        thread.start()
        while thread.is_alive():
            for child in set(me.children()) - before:
                with suppress(psutil.NoSuchProcess):
                    yield child, child.cpu_times().user
            time.sleep(0.01)
        thread.join()

    killed = False
    with act():
        needed = max((seconds for _, seconds in judging(pairs[:4])), default=0.0)
        for child, seconds in judging(pairs):
            if not killed and seconds > 2 * needed + 2.0:  # all but the endless one are done long since
                child.kill()
                killed = True
    assert killed, "the process that judges was not found"
    assert judged[-1].scores == [1.0] * 4 + [None, 1.0]
