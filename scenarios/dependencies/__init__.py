"""What an install changes, and what a setting needs to be installed."""
