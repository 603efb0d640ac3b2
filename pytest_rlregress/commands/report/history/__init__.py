"""Records of many runs: find the files, read them, put each test's results in a row."""
