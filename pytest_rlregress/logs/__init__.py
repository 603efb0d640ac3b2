"""Read logs: lines without the prefixes of launchers, how a process died, the logs that a contained test depends on."""
