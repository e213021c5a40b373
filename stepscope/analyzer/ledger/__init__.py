"""Time breakdown of one rank: every instant attributed to one category."""
