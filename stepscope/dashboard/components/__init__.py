"""The parts pages are made of."""
