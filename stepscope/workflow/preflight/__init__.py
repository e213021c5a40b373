"""Are this node's GPUs fit for a job? Measured in processes of their own, each with a deadline.

`run` asks one process a GPU (`child`, `workers`), `judging` and `state_judging` compare what they answer with what such
a GPU gives (`expectations`) and with its neighbours (`neighbours`). torch is imported in those processes only.
"""
