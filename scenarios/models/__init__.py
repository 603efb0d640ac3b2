"""What can be loaded."""
