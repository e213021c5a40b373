"""Pipeline parallelism: schedules, stages, and the bubble by cause."""
