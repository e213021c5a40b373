"""Configuration of the agent: flags before environment before file before default."""
