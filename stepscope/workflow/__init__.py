"""The work behind the commands: open inputs, call the analyzer, keep the result."""
