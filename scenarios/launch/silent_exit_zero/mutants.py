from mutants import broken, replaces
from pytest_rlregress.remedies.launch import check_finished


@broken(only="test_what_did_not_start")
def trusts_the_exit_code(returncode, log, step_pattern):
    if returncode:
        raise RuntimeError(f"{log}: exit {returncode}")


@broken(only="first_finished_step")
def any_line_will_do(returncode, log, step_pattern):
    check_finished(returncode, log, "")


# A shell that stops where a line fails.
replaces("absent", "subprocess.run", only="another_interpreter")(
    lambda original, command, **keywords: original(["sh", "-e", *command[1:]], **keywords)
)
replaces("changed", "subprocess.run", only="another_interpreter")(
    lambda original, command, **keywords: original(["no-such-shell"], **keywords)
)
