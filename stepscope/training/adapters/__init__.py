"""Adapters for training frameworks. One module per framework, which imports that framework at top level."""
