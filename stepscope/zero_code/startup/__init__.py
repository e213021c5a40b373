"""Folder put first on the PYTHONPATH of what `stepscope run` starts; it holds a sitecustomize."""
