"""Which documented failure a log or an error text shows: its lines near a hit, the events in them, their names."""
