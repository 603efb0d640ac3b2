"""``rlregress diagnose``: name the documented failures that a log shows, by the signatures that judge tests too."""
