"""The commands of ``rlregress``, a package each."""
