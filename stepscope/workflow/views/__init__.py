"""Views kept beside traces, so that unchanged traces are read once."""
