"""The agent: a daemon on each GPU node that reads, judges and serves what the GPUs and jobs do.

`service` makes the parts of a configuration and runs them, `sources` lists what is read. `now` and `clock` are always
monotonic seconds, `now_ns`, `time_ns` and `wall_clock_ns` nanoseconds since the epoch.
"""
