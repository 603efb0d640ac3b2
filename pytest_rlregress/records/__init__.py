"""One run as one JSON file: what writes it, what it holds, what reads it. docs/record.md has its keys."""
