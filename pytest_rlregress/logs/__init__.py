"""What logs say: a line without what launchers add, how a process died; the logs that a contained test depends on."""
