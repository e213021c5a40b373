"""What tells of jobs on this node: processes and their cgroups, Slurm, the kubelet, the Kubernetes API."""
