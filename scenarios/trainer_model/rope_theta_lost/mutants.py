from mutants import broken, mutant


@broken(only="test_both_spellings")
def as_the_config_writes_it(config):
    return config.to_dict()


@broken(only="test_rejects")
def any_base_will_do(config):
    content = config.to_dict()
    return {"rope_theta": 10000.0, "rope_scaling": None, "rope_parameters": {"rope_theta": 10000.0}} | content


@mutant("absent", only="by_its_old_name")
def config_answers_to_both_names(monkeypatch):
    from transformers import PretrainedConfig

    def old_name(self, name):
        parameters = self.__dict__.get("rope_parameters")
        if name == "rope_theta" and "rope_theta" in (parameters or {}):
            return parameters["rope_theta"]
        raise AttributeError(name)

    monkeypatch.setattr(PretrainedConfig, "__getattr__", old_name, raising=False)


@mutant("changed", only="by_its_old_name")
def old_name_is_refused(monkeypatch):
    from transformers import PretrainedConfig

    def refusing(self, name):
        if name == "rope_theta":
            raise KeyError("rope_theta is in rope_parameters now")
        raise AttributeError(name)

    monkeypatch.setattr(PretrainedConfig, "__getattr__", refusing, raising=False)
