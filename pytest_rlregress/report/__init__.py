"""What a run says: on the terminal."""
