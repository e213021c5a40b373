"""Which steps are out of line? Pure arithmetic on what the steps tell."""
