from mutants import broken, replaces
from pytest_rlregress.remedies.memory import engine_memory_share


@broken(only="test_any_trainer")
def share_of_what_is_free(total_bytes, reserved_bytes):
    engine_memory_share(total_bytes, reserved_bytes)
    return 0.5


@broken(only="test_documented_trainer")
def all_that_is_left(total_bytes, reserved_bytes):
    return (total_bytes - reserved_bytes) / total_bytes


@replaces("absent", "vllm.v1.worker.utils.request_memory", only="test_default_beside_a_trainer")
def takes_what_is_free(found, cache_config):
    return min(found.free_memory, int(found.total_memory * cache_config.gpu_memory_utilization))


@replaces("changed", "vllm.config.CacheConfig", only="test_default_beside_a_trainer")
def refuses_every_share(**settings):
    raise ValueError(f"gpu_memory_utilization is gone: {settings}")
