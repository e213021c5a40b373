"""Run directories: which runs there are, what was found in them, and what their ranks wrote."""
