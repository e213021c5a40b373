"""Asking the agents of many nodes over HTTP: state, findings, and captures on all ranks at once."""
