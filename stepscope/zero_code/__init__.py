"""Profiling of unmodified training scripts: what `stepscope run` puts into the processes it starts."""
