"""Runs that leave their nodes: two processes without a common folder write one run to a real S3 server."""
