"""The same run on several kinds of hardware: one job for each, on a team's Ray cluster."""
