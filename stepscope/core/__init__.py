"""Types and words that all parts of stepscope share; standard library only."""
