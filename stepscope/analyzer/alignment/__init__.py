"""Communication calls of all ranks: matched with each other, on one clock, with who arrived last."""
