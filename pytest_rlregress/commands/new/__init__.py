"""``rlregress new``: write the skeleton of a scenario from the text of an error."""
