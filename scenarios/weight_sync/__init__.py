"""New weights and adapters on their way to the engine."""
