"""Stored runs in a folder or below a URL: their sizes, whether they are still written, and their deletion."""
