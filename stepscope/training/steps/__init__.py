"""Step telemetry: what is recorded for each step, read without making training wait."""
