"""Who uses the GPUs of this node: processes and their cgroups, Slurm jobs, Kubernetes pods."""
