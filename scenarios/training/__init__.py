"""The miniature training step."""
