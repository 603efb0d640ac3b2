"""``rlregress preflight``: a trainer's configuration checked for the documented failures before a GPU is rented."""
