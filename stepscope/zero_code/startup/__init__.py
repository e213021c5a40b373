"""A folder that stands first on the PYTHONPATH of what `stepscope run` starts; see its sitecustomize."""
