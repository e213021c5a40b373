"""Kubernetes pods on this node: devices by the kubelet's pod-resources API, metadata by the API server."""
