"""``rlregress preflight``: check a trainer's configuration before a GPU is rented."""
