"""Jobs on this node: which job has which GPU, for how long, and whether its kernels run."""
