"""What went wrong in a log: documented failures by the signatures that judge tests too, and what is none of them."""
