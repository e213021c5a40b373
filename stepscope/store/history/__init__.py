"""Metric history: what agents measured over weeks, in Parquet files of our own or in a Prometheus server."""
