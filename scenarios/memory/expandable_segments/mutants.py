from mutants import broken, replaces

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@broken(only="test_cleared_environment")
def only_the_old_name(environ):
    return {name: value for name, value in environ.items() if name != NAMES[0]}


@broken(only="test_cleared_environment")
def both_unset(environ):
    return {name: value for name, value in environ.items() if name not in NAMES}


replaces("absent", "vllm.config.VllmConfig._verify_kv_transfer_compat", only="test_refused")(lambda config: None)


@replaces("changed", "vllm.config.VllmConfig._verify_kv_transfer_compat")
def connector_is_gone(config):
    raise ValueError("there is no KV connector of that name")
