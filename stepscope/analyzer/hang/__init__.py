"""Whose fault is it that a job stands still? From the flight recorders of its ranks.

`standings` says how far each rank is in each group, `given_up` which calls had not ended after all, `mismatches` where
ranks called different things, `moments` whether the dumps are of one moment, `waits` who waits for whom, `guilty` who
is behind without waiting for anybody, `ways` who did something new, `stacks` who stands at the same place; `verdict`
answers.
"""

from stepscope.analyzer.hang.verdict import explain_hang

__all__ = ["explain_hang"]
