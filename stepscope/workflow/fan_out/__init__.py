"""Reading trace files in parallel: processes on this machine, or the workers of a Dask or Ray cluster."""
