"""Foreign trace formats: one file or folder each, and what tells them apart."""
