"""What-if of a pipelined job by its table of operations: its step without stragglers."""
