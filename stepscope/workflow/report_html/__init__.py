"""How does an analysis read as one file that needs nothing else? Pure: an analysis and time lines in, HTML out."""
