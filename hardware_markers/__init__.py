"""One TOML a hardware model."""
