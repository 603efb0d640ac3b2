"""The commands of ``rlregress``, a package each, and what serves several of them: trials and environments."""
