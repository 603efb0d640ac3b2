"""``rlregress list``: what the catalogue holds."""
