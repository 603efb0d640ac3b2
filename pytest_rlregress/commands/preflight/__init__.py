"""``rlregress preflight``: check a trainer's configuration before a GPU is rented.

``command`` reads the command, files and overrides as one ``config.PlannedRun``: a command's own program composes its
configuration in ``child.py``, which ``stops`` (Hydra) and ``trl_stops`` end. ``rules`` has the table of the rules that
``preflight_command`` puts the run to; what they find is the report, as ``--json`` prints it.
"""
