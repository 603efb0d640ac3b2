from mutants import broken, replaces


@broken(only="test_a_run_is_logged")
def as_if_there_were_a_key(environ):
    return "online"


@broken(only="netrc")
def only_the_variable(environ):
    return "online" if environ.get("WANDB_API_KEY") else "offline"


replaces("absent", "wandb.init")(lambda original, **settings: original(**settings, mode="disabled"))


@replaces("changed", "wandb.init")
def the_server_is_down(**settings):
    import wandb

    raise wandb.errors.CommError("Error communicating with wandb process")
