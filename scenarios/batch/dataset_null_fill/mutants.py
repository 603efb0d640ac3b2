from mutants import broken, replaces
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


@replaces("absent", "datasets.Dataset.from_list", only="from-list")
def dicts_kept_as_given(original, rows, **keywords):
    """A datasets that keeps dicts of differing keys as JSON by itself."""
    columns = [key for key in rows[0] if isinstance(rows[0][key], (dict, list))] if rows else []
    return json_columns(rows, columns) if columns else original(rows, **keywords)


@replaces("changed", "datasets.Dataset.from_list")
def mixed_dicts_refused(rows, **keywords):
    raise ValueError("dicts of differing keys in the column messages")
