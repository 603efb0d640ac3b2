"""A folder without a checkpoint is the first run."""


def test_first_run(subject, tmp_path):
    """A folder that only resembles a checkpoint does not count."""
    assert subject(tmp_path / "not-made-yet") is None
    for name in ("global_step_", "global_step_5.tmp", "old_global_step_5", "checkpoint-best"):
        (tmp_path / name).mkdir()
    (tmp_path / "global_step_7").touch()
    assert subject(tmp_path) is None
