"""What stands in the way of measuring on this machine? Looks only: it starts nothing and changes nothing."""
