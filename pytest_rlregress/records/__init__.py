"""Records: one run as one JSON file, read; and what changed over nights of them. docs/record.md has the keys."""

#: The file of expectations, where no other is named: in pytest's root folder.
EXPECTATIONS = "rlregress-expect.toml"
