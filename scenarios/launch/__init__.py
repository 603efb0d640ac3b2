"""Before the first step: scripts, consoles, configurations, paths."""
