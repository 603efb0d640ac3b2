"""The claims on speed, each a ratio or a difference taken in one run."""
