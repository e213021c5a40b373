"""Measured rates of GPU kernels: products, attention, convolutions, norms, element-wise passes, optimizers."""
