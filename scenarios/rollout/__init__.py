"""The engine: generation, its limits, its crashes."""
