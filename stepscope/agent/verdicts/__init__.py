"""Webhook and command that are called when the live verdict of a run changes."""
