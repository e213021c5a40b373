"""Transfer of runs: a node's files to the run's URL, and a run below a URL to this machine."""
