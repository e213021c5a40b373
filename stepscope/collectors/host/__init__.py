"""Host metrics: CPU, memory, disks, networks, cgroups and the processes that use GPUs, from /proc and /sys."""
