"""Broken remedies of truncated-download, and stacks that differ."""

from __future__ import annotations

from pathlib import Path

from mutants import broken, fails, mutant


@broken(only="test_g")
def plain_download(model, directory, revision="main", endpoint=None, attempts=5):
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, local_dir=directory, endpoint=endpoint))


@broken(only="zeros")
def only_sizes_are_compared(model, directory, revision, endpoint, attempts):
    from huggingface_hub import HfApi

    plain_download(model, directory, revision, endpoint, attempts)
    for file in HfApi(endpoint=endpoint).model_info(model, files_metadata=True).siblings:
        if Path(directory, file.rfilename).stat().st_size != file.size:
            raise RuntimeError(f"{file.rfilename} is not complete")
    return Path(directory)


@mutant("absent", only="test_connection_breaks")
def the_connection_holds(monkeypatch):
    """That of the failing act; the guards have their own."""
    from pytest_rlregress.scenarios.models.truncated_download import test_truncated_download as scenario

    download = scenario.download

    def fixed(hub, folder):
        hub.faults.clear()
        return download(hub, folder)

    monkeypatch.setattr(scenario, "download", fixed)


@mutant("changed", only="test_connection_breaks")
def the_client_fails_otherwise(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
