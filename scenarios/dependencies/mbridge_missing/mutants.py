from contextlib import suppress
from importlib import metadata

from mutants import broken, replaces
from pytest_rlregress.remedies.dependencies import missing_symbol


@broken(only="without-the-symbol")
def by_distribution(setting):
    """Ask the metadata for the name, as a partial install also has it."""
    try:
        metadata.version(setting)
    except metadata.PackageNotFoundError:
        return missing_symbol(setting)
    return None


@broken(only="alone_is_missing")
def without_advice(setting):
    said = missing_symbol(setting)
    return said and said.partition("): ")[0] + ")"


@replaces("absent", "verl.workers.engine.EngineRegistry.get_engine_cls", only="without_megatron_core")
def verl_has_an_engine_of_its_own(original, model_type, backend):
    with suppress(Exception):
        return original(model_type, backend)
    return object


@replaces("changed", "verl.workers.engine.EngineRegistry.get_engine_cls", only="without_megatron_core")
def the_engine_is_for_another_device(model_type, backend):
    raise ValueError(f"No engine registered for device='cpu', model_type={model_type!r}, backend={backend!r}")
