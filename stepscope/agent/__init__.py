"""The daemon of a GPU node."""
