"""What do the kubelet and the Kubernetes API tell of the pods of this node?"""
