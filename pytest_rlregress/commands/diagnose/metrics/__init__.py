"""What trainers write each step, as evidence: read from logs and metric files, and judged by signs of failures."""
