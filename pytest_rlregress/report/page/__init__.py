"""One HTML page of a history: what a person opens in the morning."""
