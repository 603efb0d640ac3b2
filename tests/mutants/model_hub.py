"""Mutants of scenarios/models: what is asked of a hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest import mock

from mutants import broken, mutant
from mutants.models import fails_otherwise
from pytest_rlregress.remedies.models import check_model_id, download_verified


@broken("model-id-not-on-hub", only="test_the_documented_id")
def names_none_that_may_be_meant(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except ValueError:
        raise ValueError(f"{model} is not on the hub") from None


@broken("model-id-not-on-hub", only="test_what_may_not")
def being_listed_is_enough(model, endpoint=None):
    from huggingface_hub import HfApi

    HfApi(endpoint=endpoint).model_info(model)


@broken("model-id-not-on-hub", only="test_a_hub_that_is_down")
def blames_the_id_for_everything(model, endpoint=None):
    try:
        check_model_id(model, endpoint)
    except Exception as error:
        raise ValueError(f"{model} is not on the hub: {error}") from None


@broken("model-id-not-on-hub", only="test_a_folder")
def any_folder_will_do(model, endpoint=None):
    if not Path(model).is_dir():
        check_model_id(model, endpoint)


@broken("model-id-not-on-hub", only="test_the_hub_of")
def always_the_public_hub(model, endpoint=None):
    check_model_id(model, endpoint or "http://127.0.0.1:9")


@broken("model-id-not-on-hub", only="test_what_the_token")
def without_the_token(model, endpoint=None):
    with mock.patch.dict(os.environ):
        os.environ.pop("HF_TOKEN", None)
        check_model_id(model, endpoint)


@mutant("model-id-not-on-hub", "absent", only="documented]")
def the_client_finds_the_one_meant(monkeypatch):
    from transformers import AutoConfig

    from pytest_rlregress.scenarios.models.model_id_not_on_hub.test_model_id_not_on_hub import ASKED, MEANT

    load = AutoConfig.from_pretrained
    monkeypatch.setattr(
        AutoConfig, "from_pretrained", lambda model, **options: load(MEANT if model == ASKED else model, **options)
    )


@mutant("model-id-not-on-hub", "changed")
def the_hub_fails_otherwise(monkeypatch):
    from pytest_rlregress.scenarios.models import loopback_hub

    monkeypatch.setattr(loopback_hub._HubHandler, "_repository", lambda self, *args: self._refuse(403, "", "Forbidden"))


@broken("truncated-download", only="test_g")
def plain_download(model, directory, revision="main", endpoint=None, attempts=5):
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, local_dir=directory, endpoint=endpoint))


@broken("truncated-download", only="zeros")
def only_sizes_are_compared(model, directory, revision, endpoint, attempts):
    from huggingface_hub import HfApi

    plain_download(model, directory, revision, endpoint, attempts)
    for file in HfApi(endpoint=endpoint).model_info(model, files_metadata=True).siblings:
        if Path(directory, file.rfilename).stat().st_size != file.size:
            raise RuntimeError(f"{file.rfilename} is not complete")
    return Path(directory)


@broken("truncated-download", only="test_the_revision")
def another_folder(model, directory, revision="main", endpoint=None, attempts=5):
    return download_verified(model, directory, revision, endpoint, attempts).parent


@broken("truncated-download", only="test_what_is_right")
def everything_each_time(model, directory, revision="main", endpoint=None, attempts=5):
    shutil.rmtree(directory, ignore_errors=True)
    return download_verified(model, directory, revision, endpoint, attempts)


@broken("truncated-download", only="test_a_wrong_shard")
def the_cache_is_trusted(model, directory, revision="main", endpoint=None, attempts=5):
    import huggingface_hub

    real = huggingface_hub.snapshot_download
    with mock.patch.object(huggingface_hub, "snapshot_download", lambda *args, cache_dir, **more: real(*args, **more)):
        return download_verified(model, directory, revision, endpoint, attempts)


@broken("truncated-download", only="test_the_last_error")
def without_its_cause(model, directory, revision="main", endpoint=None, attempts=5):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError as error:
        raise RuntimeError(str(error)) from None


@broken("truncated-download", only="test_so_many")
def one_attempt_more(model, directory, revision="main", endpoint=None, attempts=5):
    return download_verified(model, directory, revision, endpoint, attempts + 1)


@broken("truncated-download", only="test_gives_up")
def names_every_file(model, directory, revision="main", endpoint=None, attempts=5):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError as error:
        raise RuntimeError(f"{error}: {sorted(path.name for path in Path(directory).iterdir())}") from error


@broken("truncated-download", only="test_goes_on")
def begins_anew_each_time(model, directory, revision, endpoint, attempts):
    for _ in range(attempts):
        try:
            return download_verified(model, directory, revision, endpoint, 1)
        except RuntimeError:
            shutil.rmtree(directory)
    raise RuntimeError("gave up")


@broken("truncated-download", only="test_gives_up")
def gives_up_without_a_word(model, directory, revision, endpoint, attempts):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError:
        return Path(directory)


@broken("truncated-download", only="test_gives_up")
def wrong_files_stay(model, directory, revision, endpoint, attempts):
    try:
        return download_verified(model, directory, revision, endpoint, attempts)
    except RuntimeError:
        plain_download(model, directory, revision, endpoint, attempts)
        raise


@mutant("truncated-download", "absent", only="test_connection_breaks")
def the_connection_holds(monkeypatch):
    """That of the failing act; the guards have their own."""
    from pytest_rlregress.scenarios.models.truncated_download import test_truncated_download as scenario

    download = scenario.download

    def fixed(hub, folder):
        hub.faults.clear()
        return download(hub, folder)

    monkeypatch.setattr(scenario, "download", fixed)


@mutant("truncated-download", "absent", only="test_part_of_a_shard")
def the_client_does_not_trust_its_cache(monkeypatch):
    import huggingface_hub

    download = huggingface_hub.snapshot_download

    def fixed(model, **options):
        return download(model, force_download="local_dir" not in options, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fixed)


@mutant("truncated-download", "changed", only="test_connection_breaks")
def the_client_fails_otherwise(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails_otherwise)


@mutant("truncated-download", "changed", only="test_connection_breaks")
def the_token_goes_to_the_other_host(monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download._is_same_or_hub_host", lambda url, target: True)
