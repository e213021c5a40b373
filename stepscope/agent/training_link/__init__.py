"""Socket that training processes under `profile()` connect to, and the metrics of what they send."""
