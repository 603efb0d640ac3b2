import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_rlregress.failures.act import act
from pytest_rlregress.failures.silent import silent

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
    begun = time.monotonic()
    with act():
        judged = in_a_thread(subject, *zip(*pairs, strict=True), 1.0)
    assert judged.scores == [1.0, 0.0, None, 1.0, None, 0.0]
    assert judged.errors.keys() == {2, 4}
    assert all(judged.errors.values())
    assert "1.0 s" in judged.errors[2]
    assert time.monotonic() - begun < 60, "an answer without end is not given up"


@pytest.mark.guards("math-verify-zero-reward", fidelity="injected")
@pytest.mark.needs("math-verify")
def test_worker_is_killed(subject):
    """What was being judged is told, what comes after it is judged."""
    import psutil

    pairs = [(f"The answer is ${number}$.", f"${number}$") for number in range(4)] + [ENDLESS, RIGHT]
    me, judged = psutil.Process(), []
    before = set(me.children())
    with act():
        thread = threading.Thread(target=lambda: judged.append(subject(*zip(*pairs, strict=True), 30.0)))
    thread.start()
    killed = []
    while thread.is_alive() and not killed:  # 2 s of computing: all but the endless one are done long since
        killed = [child for child in set(me.children()) - before if child.cpu_times().user > 2.0]
        time.sleep(0.01)
    for child in killed:
        child.kill()
    thread.join()
    assert judged[0].scores == [1.0] * 4 + [None, 1.0]
