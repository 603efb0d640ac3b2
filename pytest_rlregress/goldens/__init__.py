"""The step's numbers as recorded on exactly this hardware and stack, and what differs from them tonight."""
