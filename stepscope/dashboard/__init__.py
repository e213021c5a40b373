"""The web app over runs and their verdicts."""
