"""What changed between runs and what that means: regressions, repairs, flakes, missing runs. Pure functions."""
