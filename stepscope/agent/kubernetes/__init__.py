"""Health of this machine's GPUs as a condition and events of its Kubernetes node."""
