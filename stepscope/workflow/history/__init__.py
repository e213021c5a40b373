"""Metric history of many nodes: recorded from the pages of their agents, and asked by commands."""
