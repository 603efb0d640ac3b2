"""What an engine samples, and the log-probability it gives of it."""
