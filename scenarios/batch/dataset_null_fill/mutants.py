"""Broken remedies of dataset-null-fill, and stacks that differ."""

from __future__ import annotations

from mutants import broken, mutant
from pytest_rlregress.remedies.batch import json_columns


@broken(only="test_rendered_as_given")
def as_arrow_has_it(rows, columns):
    from datasets import Dataset

    return Dataset.from_list(rows)


@broken(only="test_rows_come")
def nulls_dropped(rows, columns):
    """What many do before the template: a null that was given goes too."""
    data = json_columns(rows, columns)
    read = data.format["format_kwargs"]["transform"]

    def without_nulls(value):
        if isinstance(value, dict):
            return {key: without_nulls(one) for key, one in value.items() if one is not None}
        return [without_nulls(one) for one in value] if isinstance(value, list) else value

    return data.with_transform(lambda batch: {key: without_nulls(column) for key, column in read(batch).items()})


@mutant("absent", only="from-list")
def dicts_kept_as_given(monkeypatch):
    """A datasets that keeps dicts of differing keys as JSON by itself."""
    from datasets import Dataset

    from_list = Dataset.from_list

    def kept(rows, **keywords):
        columns = [key for key in rows[0] if isinstance(rows[0][key], (dict, list))] if rows else []
        monkeypatch.setattr(Dataset, "from_list", from_list)
        try:
            return json_columns(rows, columns)
        finally:
            monkeypatch.setattr(Dataset, "from_list", kept)

    monkeypatch.setattr(Dataset, "from_list", kept)


@mutant("changed")
def mixed_dicts_refused(monkeypatch):
    from datasets import Dataset

    def refuses(rows, **keywords):
        raise ValueError("dicts of differing keys in the column messages")

    monkeypatch.setattr(Dataset, "from_list", refuses)
