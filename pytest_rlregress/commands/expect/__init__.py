"""``rlregress expect``: write the bad verdicts of a record down as expected."""
