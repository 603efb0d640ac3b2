"""A run that goes on from a checkpoint: which one is taken, whether it is whole, what is kept of the others."""
