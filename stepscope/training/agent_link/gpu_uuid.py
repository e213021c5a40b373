"""Which GPU does this process train on? Only what can be told without starting CUDA, which would take memory."""

from __future__ import annotations

import os
import sys

from stepscope.training.run.identity import Identity


def gpu_uuid(identity: Identity) -> str | None:
    """NVML's name of the current device (GPU-... or MIG-...); None when unknown. On the thread that trains."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = [name.strip() for name in visible]
    is_named = bool(names) and all(name.startswith(("GPU-", "MIG-")) and len(name) > len("GPU-") + 8 for name in names)
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        if is_named and len(names) == 1:
            return names[0]
        return names[identity.local_rank] if is_named and identity.local_rank < len(names) else None
    device: int = torch.cuda.current_device()
    if is_named and device < len(names):
        return names[device]
    uuid: object = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
