"""What is documented: the catalogue of failures, and the verdicts about them. Pure functions, no pytest."""
