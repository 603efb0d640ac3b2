"""One GPU for trainer and engine: who gets how much of it."""
