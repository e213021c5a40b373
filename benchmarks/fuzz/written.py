"""Written samples for the fuzzer of diagnostics: console logs of training frameworks, and a memory snapshot."""

from __future__ import annotations

import gzip

from tests.collectors.fake_allocator import STACKS, Allocator
from tests.collectors.training_logs.frameworks import bar, deepspeed, megatron, titan, titan_says, with_timers

_TIMERS = """\
(min, max) time across ranks (ms):
  forward-backward ....: (1.0, 2.0)
times across ranks (ms):
  batch-generator:
     rank  1: 3.0"""


def snapshot(num_kept: int) -> bytes:
    """Snapshot with C++ stacks and a CUDA graph's pool."""
    allocator = Allocator()
    allocator.segment(0, 64 << 20)
    allocator.segment(1 << 30, 64 << 20, (1, 0), 7)
    for place, stack in enumerate((*STACKS, *["own"] * num_kept)):
        for start in (0, 1 << 30):
            allocator.alloc(start + (place << 20), 1 << 20, stack)
        allocator.free((1 << 30) + (place << 20))
        allocator.step_ends()
    allocator.fail(8 << 20, 1 << 20, "engine, all", stream=7)
    return allocator.pickled()


def logs() -> list[dict[str, bytes]]:
    """Files of each job: a log of each framework, a packed one, and one of two ranks."""
    iterations = [megatron(step, 900.0 + step, seconds=step) for step in (1, 10, 20, 30, 20, 40)]
    steps = range(1, 20)
    texts = {
        "megatron": with_timers(iterations, _TIMERS),
        "deepspeed": [f"[default7]:{deepspeed(step, 105.2)}" for step in steps],
        "titan": [
            titan_says(0, "Training starts at step 1"),
            *(titan(step, 2.0 * step, color=True) for step in steps),
            titan_says(50, "Finished saving the checkpoint in 2.90 seconds."),
            titan_says(55, "validate step: 19  loss:  3.1000  memory: 9.46GiB(64.99%)  tps: 99,999"),
            titan(20, 60.0),
        ],
        "primus": [titan(step, 0.4 * step, form="primus") for step in steps],
        "hf": [
            *(bar(step, 60, 2 * step) for step in range(61)),
            "{'loss': 6.2, 'epoch': 0.1}",
            "{'eval_loss': 6.2, 'eval_runtime': 5.0}",
            "{'train_runtime': 120.0, 'train_steps_per_second': 0.5}",
        ],
    }
    written = {name: "\n".join(lines).encode() for name, lines in texts.items()}
    jobs = [{f"{name}.log": content} for name, content in written.items()]
    ranks = {f"rank{rank}/stdout.log": written["titan"] for rank in range(2)}
    return [*jobs, {"a.out.gz": gzip.compress(written["hf"])}, ranks]
