"""Connection between the training process and the agent on its node: heartbeats out, capture requests in."""
