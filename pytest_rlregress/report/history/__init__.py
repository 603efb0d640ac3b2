"""Records of many runs: an index over them, what changed between them, and what that means."""
