"""A reward function as verl loads it from a file."""

import os


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Return the process that scores."""
    return float(os.getpid())
