"""Export of a job's traces to the formats of other tools."""
