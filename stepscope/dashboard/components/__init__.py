"""Panels of a run's page as Dash components."""
