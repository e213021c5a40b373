"""Prometheus exporter: readings of all sources as a page of metrics."""
