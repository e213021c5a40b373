"""GPUs of this machine, read by probe processes so that a hung driver never blocks the agent.

A call of NVML may never return, not even when its process is killed. The agent itself therefore calls nothing: probe
processes do (`collectors.nvml.worker`), and the agent asks them over pipes without waiting. One process reads all
GPUs; a GPU that hangs, is lost, crashes its process or is slow gets a process of its own.
"""
