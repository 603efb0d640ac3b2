"""``rlregress list``: print the catalogue."""
