"""Fleet classes: what GPUs and jobs spend their time on, by hardware counters alone."""
