"""``rlregress report``: what changed from one nightly run to the next, as a page, Markdown, JSON and text."""
