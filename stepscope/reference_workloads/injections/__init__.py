"""What can be made wrong on purpose? One class a fault, one file a family, all by name in `catalogue`."""
