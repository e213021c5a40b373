"""Safe unpickling: only plain data is built (dicts, lists, strings, numbers), never a class or a function.

PyTorch writes flight recorder dumps and memory snapshots as pickles, and a pickle can come from anybody. `loading`
checks the opcodes first and then unpickles; `streaming` does the same for a pickle that is larger than memory.
"""
