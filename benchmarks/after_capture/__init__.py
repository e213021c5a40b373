"""Steps after a capture against steps before it, on a GPU, and what a capture costs while it records."""
