"""Readers: profiler trace files to columns, whatever their age, layout or damage."""
