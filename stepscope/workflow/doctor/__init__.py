"""Checks of what stands in the way of measuring on this machine. Looks only: starts nothing and changes nothing."""
