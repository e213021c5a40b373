"""What would the step take without one of its causes? The job as a graph, replayed."""
