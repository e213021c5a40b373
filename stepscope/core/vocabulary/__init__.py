"""Fixed vocabularies of a verdict: categories of GPU time, causes and reasons, and their colours."""
