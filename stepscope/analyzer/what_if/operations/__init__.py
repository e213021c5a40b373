"""What would a pipelined job's step take without its stragglers, by its table of operations?"""
