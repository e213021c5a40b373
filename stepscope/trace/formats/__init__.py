"""Readers of foreign trace formats, one module or package each; `stepscope.trace.reading` lists them."""
