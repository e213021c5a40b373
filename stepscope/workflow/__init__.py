"""The jobs people come for: open inputs, call the analyzer, keep the result."""
