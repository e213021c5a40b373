"""Captures: profiles of running training, asked for through the agent, taken by `profile()` or by Kineto."""
