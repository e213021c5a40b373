"""Keeps runs and what was found in them."""
