from pathlib import Path

from mutants import broken, replaces
from pytest_rlregress.remedies.launch import dataset_file


@broken(only="test_the_one_file_on_the_hub_is_loaded[folders_of_this_machine-")
def folders_of_this_machine(path):

    if Path(path).is_file():
        return path
    if not Path(path).is_dir():
        raise ValueError(f"{path}: no such file or folder")
    return dataset_file(path)


@broken(only="revision-datasets")
def the_newest_revision(path):
    return dataset_file(path.replace("@main", ""))


replaces("absent", "datasets.load_dataset", only="dapo-math-17k-datasets")(
    lambda original, *kind, data_files, **more: original(*kind, data_files=dataset_file(data_files), **more)
)


@replaces("changed", "datasets.load_dataset", only="dapo-math-17k-datasets")
def datasets_wants_a_list(*kind, data_files, **more):
    raise TypeError(f"data_files must be a list of files, not {data_files!r}")
