"""Goodput: what the GPU-time of a job went to, over all its attempts and world sizes."""
