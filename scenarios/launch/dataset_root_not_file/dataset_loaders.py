"""Loaders that take a path to a parquet file, and a dataset as it is downloaded."""

PROMPTS = ["prompt 0", "prompt 1", "prompt 2"]


def write(root, *names):
    """A dataset as it is downloaded: three prompts in each file below ``data/``, a card beside it."""
    import pyarrow
    import pyarrow.parquet

    (root / "data").mkdir(parents=True)
    (root / "README.md").write_text("# A dataset\n")
    for name in names:
        pyarrow.parquet.write_table(pyarrow.table({"prompt": PROMPTS}), root / "data" / f"{name}.parquet")
    return root


def by_datasets(path):
    """As documented."""
    import datasets

    return datasets.load_dataset("parquet", data_files=path)["train"]


def by_verl(path):
    """As ``data.train_files``."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    return RLHFDataset(path, tokenizer=None, config=OmegaConf.create({"filter_overlong_prompts": False})).dataframe


def by_trl(path):
    """As ``datasets: [{path: parquet, data_files: …}]`` of its scripts."""
    from trl.scripts.utils import DatasetConfig, DatasetMixtureConfig, get_dataset

    return get_dataset(DatasetMixtureConfig(datasets=[DatasetConfig(path="parquet", data_files=path)]))["train"]


LOAD_BY = {"datasets": by_datasets, "verl": by_verl, "trl": by_trl}
