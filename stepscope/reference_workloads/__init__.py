"""Real 3D-parallel training with known bottlenecks: the ground truth."""
