"""How is a PyTorch process captured that knows nothing of stepscope? By libkineto's own daemon protocol.

A process started with KINETO_USE_DAEMON=1 asks a daemon every 5 s whether it should trace; here is that daemon.
"""
