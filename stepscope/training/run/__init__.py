"""The run of this process: rank and host, run name, mesh, run.json, files, and an orderly end."""
