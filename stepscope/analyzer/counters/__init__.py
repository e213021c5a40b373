"""Counters of a run's GPUs and hosts, joined by time with its steps: reasons of losses, check of the breakdown."""
