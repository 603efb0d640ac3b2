"""Environments built by uv: what they hold, where packages come from, how they are resolved and kept.

``contents``        what is held fixed: this environment, or the part of it that the tests need
``requirements``    what packages require of each other, and which can therefore not be moved alone: pure
``releases``        the released versions between two ends
``index_settings``  where packages come from: the configuration of pip and uv
``environment``     the environment of a running command, moved from lock to lock
``resolver``        a lock with some packages moved
``uv``              runs uv
"""
