"""The model as the trainer runs it: packing, positions, precision."""
