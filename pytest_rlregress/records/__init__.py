"""Records: one run as one JSON file, read; and what changed over nights of them. docs/record.md has the keys."""
