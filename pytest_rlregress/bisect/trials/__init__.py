"""A candidate tried: what came out of its tests, and whether that is the failure of the bad end.

``facts``       what is known: a test seen in a run, a run, a trial
``runner``  tries a candidate: its environment, its runs, its line in the journal; never the same one twice
``trial``       tests run in an environment
``witness``     pytest's side of that: writes down what came out
``sameness``    whether what came out is the failure of the bad end: pure
``journal``     a line for every finished trial, from which the same command resumes
"""
