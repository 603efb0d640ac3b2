"""``rlregress moved``: say which changes between two releases concern a run, read from released wheels.

``index``        which wheels there are, as the indexes of uv and pip say
``ranges``       opens a wheel on a server, of which only parts are read
``wheels``       reads some files of a release, and keeps them by name and hash
``facts``        keeps what is derived from releases
``reading``      reads a range of releases at the same time
``findings``     compares what each release makes of a run: pure
``fields``       dataclasses by their source: defaults, values refused
``renames``      new names: translations, messages, the same last name
``features``     which moved defaults concern a run, and how much
``composition``  verl's configurations, composed by ``compose`` in a process of its own
``verl``, ``trl`` what moved in a trainer
``binding``      names and calls of a trainer against two engines, with ``guards`` decided, by a type checker
``engines``      what moved below the trainers; ``engine_defaults``, what they leave open
``history``      since when the installed trainer lacks a key, for preflight
``comparison``   two releases of a package for a run, or for an upgrade
``answer``       the answer in text and JSON
"""
