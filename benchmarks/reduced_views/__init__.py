"""What making views beside training costs it, and whether the views give the same analysis."""
