"""The agent: a daemon on each GPU node that reads, judges and serves what the GPUs and jobs do.

`assembly` makes the parts of a configuration, `service` runs them, `sources` lists what is read.
"""
