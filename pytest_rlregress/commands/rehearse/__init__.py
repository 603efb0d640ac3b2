"""Run a user's own training command once in miniature, watched.

``process`` starts the command with ``hook`` as each process' ``sitecustomize``. In the trainer's process ``ways_in``
makes the run small (``shrink``, ``small_model``) and watches it (``watch``, ``passes``, ``reward_trial``); it writes
events. ``judge`` reads them, and ``show`` prints. There is no trainer here: the user's entry point and TRL's class run.
"""
