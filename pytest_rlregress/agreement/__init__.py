"""Log-probabilities of the same ids, by an engine and by a trainer's model: how far apart, and why."""
