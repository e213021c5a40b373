"""Anomalies in step figures: loss and gradient spikes, loss-scale collapse, memory growth, step-time changes."""
