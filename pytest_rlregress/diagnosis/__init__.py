"""Which documented failure a log or an error text shows: read, put together to events, matched with the signatures."""
