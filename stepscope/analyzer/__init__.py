"""Pure functions from trace columns and samples to findings with evidence: no I/O, no clock, no plotting."""
