"""``rlregress moved``: say which changes between two releases concern a run, read from released wheels.

``index``   which wheels there are, as the indexes of uv and pip say
``ranges``  opens a wheel on a server, of which only parts are read
``wheels``  reads some files of a release, and keeps them by name and hash
"""
