from pathlib import Path

from mutants import broken, fails, replaces


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


@replaces("absent", ".test_truncated_download.download", only="test_connection_breaks")
def the_connection_holds(original, hub, folder):
    """That of the failing act; the guards have their own."""
    hub.faults.clear()
    return original(hub, folder)


replaces("changed", "huggingface_hub.snapshot_download", only="test_connection_breaks")(fails)
