"""Records: one run as one JSON file, written and read. docs/record.md has its keys."""
