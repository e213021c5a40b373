"""Profiling of PyTorch processes that know nothing of stepscope, by libkineto's own daemon protocol.

A process started with KINETO_USE_DAEMON=1 asks a daemon every 5 s whether it should trace. This package is that daemon.
"""
