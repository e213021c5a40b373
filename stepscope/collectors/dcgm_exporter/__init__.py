"""GPU metrics from a dcgm-exporter's page, whichever version wrote it."""
