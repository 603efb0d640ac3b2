import subprocess

from mutants import fails, replaces


@replaces("regressed", ".test_worker_double_free.probe", only="test_probe_of_vllm")
def never_looks_at_the_driver(code, folder):
    return subprocess.run(["true"], capture_output=True, text=True)


@replaces("regressed", "pytest_rlregress.commands.diagnose.diagnose_command.reader.read", only="test_diagnose")
def workers_logs_are_empty(path):
    return iter(())


@replaces("absent", "ray.actor.ActorClass.options", only="imports_vllm")
def no_driver_for_workers(original, self, *, runtime_env=None, **given):
    return original(self, **given)


replaces("changed", "ray.actor.ActorClass.options", only="imports_vllm")(fails)
