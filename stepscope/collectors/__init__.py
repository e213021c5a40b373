"""Collectors: one data source each (GPUs, host, jobs, NCCL, PyTorch's dumps), turned into typed records."""
