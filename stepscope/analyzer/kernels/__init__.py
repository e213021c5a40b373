"""What holds the kernels back, one by one and together: launch limits, tensor cores, size, fusion, copies."""
