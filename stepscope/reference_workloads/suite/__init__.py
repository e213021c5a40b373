"""Suite of labelled runs: each has one known fault, and the analysis is scored on whether it names that fault."""
