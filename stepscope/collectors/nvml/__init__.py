"""NVIDIA GPUs through NVML. Driver calls are made in this folder only.

A call may never return, and may end the process (a GPU that fell off the bus, a driver that hangs): the agent runs this
in a process of its own (`nvml.worker`, started by `stepscope.agent.gpus`). Whatever asks the driver raises
`GpuUnusableError` where the GPU will answer nothing more, and `DriverUnusableError` where no GPU will.
"""
