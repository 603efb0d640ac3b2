"""Try a candidate: what came out of its tests, and whether that is the failure of the bad end.

``observations``        what is known: a test seen in a run, a run, a trial
``runner``              tries a candidate: its environment, its runs, its line in the journal; never the same one twice
``pytest_run``          runs the tests in an environment
``trial_plugin``        pytest's side of that: writes down what came out
``failure_comparison``  whether what came out is the failure of the bad end: pure
``journal``             a line for every finished trial, from which the same command resumes
"""
