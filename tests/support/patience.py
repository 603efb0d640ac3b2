"""How long a test waits for what must come."""

#: Seconds until what never ends is ended. No machine is so late, and no test measures speed: benchmarks do.
PATIENCE = 600.0
