from mutants import failing, mutant, replaces


@replaces(
    "regressed", "pytest_rlregress.commands.diagnose.diagnose_command.reader.read", only="names_the_raylet[runner]"
)
def raylets_are_not_named(original, path):
    """A reader that loses who died."""
    for block in original(path):
        yield block.replace(b"aylet", b"")


@replaces(
    "regressed", "pytest_rlregress.commands.diagnose.diagnose_command.reader.read", only="names_the_raylet[runner]"
)
def any_mention_of_a_raylet(original, path):
    """A reader that takes a worker's words for the raylet's."""
    for block in original(path):
        yield block.replace(b"Some common causes include: the raylet crashed by SIGSEGV", b"Raylet is dead! Exiting")


@mutant("absent", only="its_runner[runner]")
def raylets_live(monkeypatch):
    """A raylet that survives what it is sent."""
    from pytest_rlregress.scenarios.cluster.raylet_crash import test_raylet_crash as scenario

    monkeypatch.setattr(scenario.TwoNodes, "_kill", lambda self, whose, node, ended: None)
    monkeypatch.setattr(scenario, "SECONDS", 1)


replaces("changed", "ray.get", only="its_runner[runner]")(failing(TimeoutError("no answer")))
