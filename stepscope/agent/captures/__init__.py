"""Captures: profiles of running training, requested through the agent, taken by `profile()` or by libkineto."""
