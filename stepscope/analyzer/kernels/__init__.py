"""Kernels and copies: which hold the time, and what holds them back."""
