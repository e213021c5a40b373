"""Measurement of a node's GPUs before a job, in processes of their own with a deadline each, and which are unfit.

`phases` asks one process a GPU (`worker_process`, through `workers`); `performance` and `gpu_state` compare the answers
with what such a GPU gives and with its neighbours. torch is imported in those processes only.
"""
