"""Ray: daemons and workers that die."""
