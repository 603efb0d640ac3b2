import _thread
import time

from mutants import failing, mutant, replaces

READ = "pytest_rlregress.commands.diagnose.diagnose_command.reader.read"


@replaces("regressed", READ, only="empty-runner")
def logs_are_empty(path):
    return iter(())


@replaces("regressed", READ, only="raylet-runner")
def any_mention_of_a_raylet(original, path):
    """A reader that takes a worker's words for the raylet's."""
    for block in original(path):
        yield block.replace(b"Some common causes include: the raylet crashed by SIGSEGV", b"Raylet is dead! Exiting")


# The guards come first, and end the runner's raylet.
@mutant("absent", only="live-driver")
def raylets_live(monkeypatch):
    """A raylet that survives what it is sent."""
    from pytest_rlregress.scenarios.cluster.raylet_crash import test_raylet_crash as scenario

    monkeypatch.setattr(scenario.TwoNodes, "_kill", lambda self, whose, node, ended: None)
    monkeypatch.setattr(scenario, "SECONDS", 1)


replaces("changed", "ray.get", only="function-driver")(failing(TimeoutError("no answer")))


@mutant("reproduced", only="waits_on-driver")
def driver_waits_on(monkeypatch):
    """A driver that never learns of its raylet; the cluster lives on, for the other mutants."""
    from pytest_rlregress.scenarios.cluster.raylet_crash import test_raylet_crash as scenario

    def interrupt(nodes, whose, node, ended):
        ended.wait(2)
        nodes.interrupted = True
        _thread.interrupt_main()

    def wait(*_, **__):
        while True:
            time.sleep(0.1)

    monkeypatch.setattr("ray.get", wait)
    monkeypatch.setattr(scenario.TwoNodes, "_kill", interrupt)
