"""Step metrics for the experiment trackers and telemetry that the training code has opened already."""
