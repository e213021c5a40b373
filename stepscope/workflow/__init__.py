"""The jobs behind the commands, one module a command: open inputs, call the analyzer, keep the result."""
