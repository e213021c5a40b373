"""Health of each GPU, its links, its driver and the machine: checks of samples, one event an episode."""
