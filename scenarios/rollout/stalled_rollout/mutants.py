from mutants import broken, failing, replaces
from pytest_rlregress.remedies.rollout import watch_engine_log


@broken(only="engine-died")
def asleep(log, patience):
    return lambda: None


@broken(only="ends_the_run")
def waits_longer(log, patience):
    return watch_engine_log(log, 20 * patience)


@broken(only="engine-died")
def from_the_start(log, patience):
    """Takes an error of an earlier run for one of this."""
    lines = log.read_text()
    log.write_text("")
    check = watch_engine_log(log, patience)
    log.write_text(lines)
    return check


@replaces("absent", ".test_stalled_rollout.complete")
def server_serves_what_does_not_fit(server, prompt_length, max_tokens):
    """An answer stands in for the served one, which would take long."""
    from pytest_rlregress.scenarios.rollout.max_tokens_overflow.test_max_tokens_overflow import LIMIT, complete

    if prompt_length < LIMIT < prompt_length + max_tokens:
        complete(server, prompt_length, 1)
        return max_tokens
    return complete(server, prompt_length, max_tokens)


replaces("changed", ".test_stalled_rollout.complete")(failing(TypeError("create() got an unexpected keyword argument")))
