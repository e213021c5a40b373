"""The shared words of stepscope: what crosses a border between rooms. Standard library only."""
