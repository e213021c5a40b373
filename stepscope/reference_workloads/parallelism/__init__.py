"""Parallel training of a model: sharding of its stages, pipeline schedules, gradients over ranks."""
