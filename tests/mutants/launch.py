"""Mutants of scenarios/launch."""

from __future__ import annotations

import copy
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from mutants import broken, mutant
from pytest_rlregress.remedies.launch import (
    check_finished,
    check_interpolations,
    check_key_placement,
    dataset_file,
    fingerprinted_state,
    utf8_environment,
    wandb_mode,
)


@broken("silent-exit-zero", only="test_what_did_not_start")
def trusts_the_exit_code(returncode, log, step_pattern):
    if returncode:
        raise RuntimeError(f"{log}: exit {returncode}")


@broken("silent-exit-zero", only="first_finished_step")
def any_line_will_do(returncode, log, step_pattern):
    check_finished(returncode, log, "")


@broken("silent-exit-zero", only="first_finished_step")
def validation_is_a_step(returncode, log, step_pattern):
    check_finished(returncode, log, r"step:\d+ -")


@broken("silent-exit-zero", only="another-trainers")
def knows_verl_alone(returncode, log, step_pattern):
    check_finished(returncode, log, r"step:\d+ - .*timing_s/step")


@broken("silent-exit-zero", only="test_neither_log_nor_code_alone")
def trusts_the_log(returncode, log, step_pattern):
    check_finished(0, log, step_pattern)


@broken("silent-exit-zero", only="test_a_step_anywhere")
def reads_the_last_lines(returncode, log, step_pattern):
    tail = log.with_suffix(".tail")
    tail.write_bytes(log.read_bytes()[-1000:])
    check_finished(returncode, tail, step_pattern)


def run_as(monkeypatch, changed):
    """Have subprocess.run do what ``changed(command, keywords)`` makes of a call."""
    run = subprocess.run

    def patched(command, **keywords):
        command, keywords = changed(command, keywords)
        return run(command, **keywords)

    monkeypatch.setattr(subprocess, "run", patched)


@mutant("silent-exit-zero", "absent", only="another_interpreter")
def the_shell_stops_where_a_line_fails(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["sh", "-e", *command[1:]], keywords))


@mutant("silent-exit-zero", "changed", only="another_interpreter")
def no_shell(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (["no-such-shell"], keywords))


@broken("console-encoding", only="check-mark-gbk")
def environment_as_it_is(environ):
    return dict(environ)


@broken("console-encoding", only="lone-surrogate-gbk")
def strict_utf8(environ):
    return {**environ, "PYTHONIOENCODING": "utf-8"}


@mutant("console-encoding", "absent", only="test_printing_fails")
def consoles_that_take_all(monkeypatch):
    run_as(monkeypatch, lambda command, keywords: (command, {**keywords, "env": utf8_environment(keywords["env"])}))


@mutant("console-encoding", "changed", only="test_printing_fails")
def an_encoding_nobody_has(monkeypatch):
    said = {"PYTHONIOENCODING": "klingon"}
    run_as(monkeypatch, lambda command, keywords: (command, {**keywords, "env": {**keywords["env"], **said}}))


@broken("empty-env-in-config", only="one-empty")
def nothing_wrong(config, environ):
    return []


@broken("empty-env-in-config", only="test_what_the_check_lets_through")
def a_default_will_do(config, environ):
    return check_interpolations(config, {name: value for name, value in environ.items() if value})


@broken("empty-env-in-config", only="set-plain")
def text_is_a_number(config, environ):
    return [one for one in check_interpolations(config, environ) if "export" in one.instead]


@broken("empty-env-in-config", only="test_what_the_check_lets_through")
def all_that_is_interpolated(config, environ):
    return check_interpolations(config, {})


@broken("empty-env-in-config", only="test_what_the_check_says")
def the_default_stays_text(config, environ):
    from dataclasses import replace

    return [replace(one, instead="${oc.env:X,1}" + one.why) for one in check_interpolations(config, environ)]


@mutant("empty-env-in-config", "absent")
def verl_takes_one_for_empty(monkeypatch):
    from verl.utils import config as verl_config

    validate = verl_config.validate_config

    def validate_numbers(config, **keywords):
        config = copy.deepcopy(config)
        for key in ("n_gpus_per_node", "nnodes"):
            config.trainer[key] = int(config.trainer[key] or 1)
        return validate(config, **keywords)

    monkeypatch.setattr(verl_config, "validate_config", validate_numbers)


@mutant("empty-env-in-config", "changed")
def verl_names_the_key(monkeypatch):
    from verl.utils import config as verl_config

    def validate(config, **keywords):
        raise ValueError(f"trainer.nnodes must be a number, not {config.trainer.nnodes!r}")

    monkeypatch.setattr(verl_config, "validate_config", validate)


@broken("config-key-placement", only="test_every_wrong_place_is_named")
def finds_the_first(config):
    return check_key_placement(config)[:1]


@broken("config-key-placement", only="test_what_works")
def everything_in_an_environment_too(config):
    [environment] = config["orchestrator"]["env"]
    return check_key_placement(environment.get("args", {}))


@broken("config-key-placement", only="test_in_any_other_table")
def looks_at_the_top_only(config):
    return [one for one in check_key_placement(config) if "." not in one.key]


@broken("config-key-placement", only="test_what_to_write_instead")
def the_wrong_table(config):
    from dataclasses import replace

    return [replace(one, instead="[trainer]\nac = 1") for one in check_key_placement(config)]


@broken("config-key-placement", only="test_what_to_write_instead")
def values_as_python_writes_them(config):
    return [replace(one, instead=one.instead.replace("true", "True")) for one in check_key_placement(config)]


@broken("config-key-placement", only="test_what_to_write_instead")
def the_usual_value(config):
    return [replace(one, instead=one.instead.replace("1024", "2048")) for one in check_key_placement(config)]


@mutant("config-key-placement", "absent", only="test_verl_has_no_such_key")
def verl_takes_any_key(monkeypatch):
    import hydra

    compose = hydra.compose
    monkeypatch.setattr(
        hydra, "compose", lambda name, overrides: compose(name, overrides=[f"+{one}" for one in overrides])
    )


@mutant("config-key-placement", "changed", only="test_verl_has_no_such_key")
def hydra_without_the_file(monkeypatch):
    import hydra

    compose = hydra.compose
    monkeypatch.setattr(hydra, "compose", lambda name, overrides: compose("no_trainer", overrides=overrides))


@mutant("config-key-placement", "absent", only="test_trl_has_no_such_key")
def trl_leaves_it_out(monkeypatch):
    from functools import partialmethod

    from trl import TrlParser

    parse = TrlParser.parse_args_and_config
    monkeypatch.setattr(TrlParser, "parse_args_and_config", partialmethod(parse, fail_with_unknown_args=False))


@mutant("config-key-placement", "absent", only="test_key_in_the_wrong_place")
def seq_len_for_all(monkeypatch):
    """As prime-rl does since 2025-12-19."""
    from pytest_rlregress.scenarios.launch.config_key_placement import prime_rl

    class Shared(prime_rl.RLConfig):
        seq_len: int | None = None

    monkeypatch.setattr(prime_rl, "RLConfig", Shared)


@mutant("config-key-placement", "changed", only="test_key_in_the_wrong_place")
def another_schema(monkeypatch):
    from pytest_rlregress.scenarios.launch.config_key_placement import prime_rl

    monkeypatch.setattr(prime_rl, "RLConfig", prime_rl.SharedModelConfig)


@broken("wandb-key-missing", only="test_a_run_is_logged")
def as_if_there_were_a_key(environ):
    return "online"


@broken("wandb-key-missing", only="netrc")
def only_the_variable(environ):
    return "online" if environ.get("WANDB_API_KEY") else "offline"


@broken("wandb-key-missing", only="test_what_the_environment_says")
def mode_as_it_is(environ):
    return environ.get("WANDB_MODE", wandb_mode(environ))


@broken("wandb-key-missing", only="test_a_netrc_file_without")
def any_netrc_file(environ):
    from pathlib import Path

    return "online" if Path(environ["HOME"], ".netrc").exists() else wandb_mode(environ)


@mutant("wandb-key-missing", "absent")
def wandb_goes_on_without(monkeypatch):
    from functools import partial

    import wandb

    monkeypatch.setattr(wandb, "init", partial(wandb.init, mode="disabled"))


@mutant("wandb-key-missing", "changed")
def the_server_is_down(monkeypatch):
    import wandb

    def init(**settings):
        raise wandb.errors.CommError("Error communicating with wandb process")

    monkeypatch.setattr(wandb, "init", init)


@broken("dataset-root-not-file", only="test_the_one_file_on_the_hub_is_loaded[folders_of_this_machine-")
@broken("dataset-root-not-file", only="test_a_file_stays")
def folders_of_this_machine(path):
    from pathlib import Path

    if Path(path).is_file():
        return path
    if not Path(path).is_dir():
        raise ValueError(f"{path}: no such file or folder")
    return dataset_file(path)


@broken("dataset-root-not-file", only="revision-datasets")
def the_newest_revision(path):
    return dataset_file(path.replace("@main", ""))


@broken("dataset-root-not-file", only="test_two_files")
def the_first_of_several(path):
    try:
        return dataset_file(path)
    except ValueError as error:
        return str(error).partition("Below it: ")[2].partition(", ")[0]


@broken("dataset-root-not-file", only="test_two_files")
def names_none_of_several(path):
    try:
        return dataset_file(path)
    except ValueError:
        raise ValueError(f"{path} is a folder") from None


@broken("dataset-root-not-file", only="test_no_parquet")
def an_empty_folder_is_itself(path):
    try:
        return dataset_file(path)
    except ValueError as error:
        if str(error).endswith("none"):
            return path
        raise


@broken("dataset-root-not-file", only="test_nothing_there")
def what_is_not_there_is_itself(path):
    try:
        return dataset_file(path)
    except ValueError as error:
        if "no such" in str(error):
            return path
        raise


@broken("dataset-root-not-file", only="test_a_hub_that")
def blames_the_path(path):
    try:
        return dataset_file(path)
    except Exception as error:
        raise ValueError(f"{path}: {error}") from None


@broken("dataset-root-not-file", only="test_a_snapshot")
def files_that_are_no_links(path):
    from pathlib import Path

    if any(file.is_symlink() for file in Path(path).rglob("*.parquet")):
        raise ValueError(f"{path} is a folder: name the one parquet file meant. Below it: none")
    return dataset_file(path)


@broken("dataset-root-not-file", only="test_a_file_stays")
def its_folder_searched(path):
    return dataset_file(path.rpartition("/")[0]) if path.endswith(".parquet") else dataset_file(path)


@mutant("dataset-root-not-file", "absent", only="dapo-math-17k-datasets")
def datasets_takes_the_file(monkeypatch):
    import datasets

    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda *kind, data_files, **more: load(*kind, data_files=dataset_file(data_files), **more),
    )


@mutant("dataset-root-not-file", "changed", only="dapo-math-17k-datasets")
def datasets_wants_a_list(monkeypatch):
    import datasets

    def load(*kind, data_files, **more):
        raise TypeError(f"data_files must be a list of files, not {data_files!r}")

    monkeypatch.setattr(datasets, "load_dataset", load)


@broken("dataloader-resume-skips", only="test_other_data_is_refused")
def rows_counted_alone(loader, rows=None):
    return replace(fingerprinted_state(loader, rows), sha256=f"{len(loader.dataset)} rows")


@broken("dataloader-resume-skips", only="test_other_data_is_refused")
def first_row_alone(loader, rows=None):
    return replace(fingerprinted_state(loader, loader.dataset[:1]), rows=len(loader.dataset))


@broken("dataloader-resume-skips", only="test_other_data_is_refused")
def in_any_order(loader, rows=None):
    return fingerprinted_state(loader, sorted(loader.dataset, key=str))


@broken("dataloader-resume-skips", only="test_every_row_comes_once")
def hash_of_the_object(loader, rows=None):
    return replace(fingerprinted_state(loader, rows), sha256=str(id(loader.dataset)))


@broken("dataloader-resume-skips", only="test_rows_that_are_made")
def given_rows_not_read(loader, rows=None):
    return fingerprinted_state(loader, [0] * len(loader.dataset)) if rows else fingerprinted_state(loader)


@broken("dataloader-resume-skips", only="test_rows_that_are_made")
def bytes_left_out(loader, rows=None):
    if rows:
        rows = [{key: value for key, value in row.items() if not isinstance(value, bytes)} for row in rows]
    return fingerprinted_state(loader, rows)


@broken("dataloader-resume-skips", only="never_interrupted")
def state_as_bytes_of_another_class(loader, rows=None):
    made = fingerprinted_state(loader, rows)
    return SimpleNamespace(
        state_dict=lambda: {"all": Path("."), **made.state_dict()}, load_state_dict=made.load_state_dict
    )


@broken("dataloader-resume-skips", only="says_nothing")
def old_states_taken(loader, rows=None):
    made = fingerprinted_state(loader, rows)

    def load(state):
        (made if "sha256" in state else loader).load_state_dict(state)

    return SimpleNamespace(state_dict=made.state_dict, load_state_dict=load)


@broken("dataloader-resume-skips", only="test_other_data_is_refused")
def loads_before_it_looks(loader, rows=None):
    made = fingerprinted_state(loader, rows)

    def load(state):
        loader.load_state_dict(state["loader"])
        made.load_state_dict(state)

    return SimpleNamespace(state_dict=made.state_dict, load_state_dict=load)


@broken("dataloader-resume-skips", only="test_every_row_comes_once")
def other_batch_size_refused(loader, rows=None):
    made = fingerprinted_state(loader, rows)
    return replace(made, sha256=f"{made.sha256} in batches of {loader.batch_size}")


@mutant("dataloader-resume-skips", "absent")
def other_data_begins_anew(monkeypatch):
    """A torchdata that keeps what its data is, and drops the state of another."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    save, load = StatefulDataLoader.state_dict, StatefulDataLoader.load_state_dict

    def data_of(self):
        return str([sorted(row.items()) if isinstance(row, dict) else row for row in self.dataset])

    def saved(self):
        return {**save(self), "data": data_of(self)}

    def loaded(self, state):
        if state.get("data") == data_of(self):
            load(self, {key: value for key, value in state.items() if key != "data"})

    monkeypatch.setattr(StatefulDataLoader, "state_dict", saved)
    monkeypatch.setattr(StatefulDataLoader, "load_state_dict", loaded)


@mutant("dataloader-resume-skips", "changed")
def states_refused(monkeypatch):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def refused(self, state):
        raise RuntimeError("this state is of another version")

    monkeypatch.setattr(StatefulDataLoader, "load_state_dict", refused)
