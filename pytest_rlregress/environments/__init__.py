"""What is installed for a bisect, and from where.

``specimen``        what is held fixed: this environment, or the part of it that the tests need
``wishes``          what packages ask of each other, and which can therefore not be moved alone: pure
``index``           the released versions between two ends
``index_pages``     what indexes and folders say of a package
``index_settings``  where packages come from: what pip and uv are configured with
``environment``     environments built by uv, addressed by their lock
``resolver``        what uv is asked for a lock with one package moved
``installer``       runs uv
"""
