"""A trainer, as far as the harness is concerned."""
