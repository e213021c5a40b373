"""What held the GPU's memory, and why did it run out? From a snapshot of torch's allocator.

`history` says how much was allocated when, and what was held at a moment; `categories` what each block was for; then
`fragmentation`, `growth` from step to step, `out_of_memory` the post-mortem by numbers, `remedies` what to change;
`report` puts it together.
"""

from stepscope.analyzer.memory.report import explain_memory

__all__ = ["explain_memory"]
