"""NCCL's own output: logs, RAS service, inspector plugin, topology files; also the hang flags of xpu_timer."""
