from mutants import broken, failing, replaces
from pytest_rlregress.remedies.weight_sync import run_socket


@broken(only="each_run_and_rank")
def run_without_rank(handle, run):
    return run_socket("ipc:///tmp/weights.sock", run)


@broken(only="find_each_other")
def another_name_in_each_process(handle, run):
    return handle.replace(".sock", f"-{hash(run) % 10**8}.sock")


replaces("absent", ".test_socket_name_shared.no_rename", only="first_run")(run_socket)
replaces("changed", "pytest_rlregress.scenarios.weight_sync.transfers.receive", only="first_run")(
    failing(MemoryError("no shared memory"))
)
