"""Cases of several GPUs, the most important first: half of them in a first call, the rest in a second."""

from __future__ import annotations

from benchmarks.labelled_runs.communication_jobs import EXCHANGE_JOBS
from benchmarks.labelled_runs.job import Job
from benchmarks.labelled_runs.rank_jobs import RANK_JOBS
from benchmarks.several_gpus.layout_jobs import LAYOUT_JOBS
from benchmarks.several_gpus.trainer_jobs import TRAINER_JOBS

_KNOWN = TRAINER_JOBS | LAYOUT_JOBS | {job.name: job for job in (*RANK_JOBS, *EXCHANGE_JOBS)}

_ORDER = """
hf_ddp_plain hf_ddp_loader accelerate_uneven tp_python pp_gpipe_few hf_fsdp_python lightning_evaluates hf_ddp_saves
accelerate_reduces ddp_shared_gpu pp_1f1b_uneven ddp_sockets accelerate_reads bert_small_buckets hf_fsdp_full_shard
run_hf_python llama_full_gradients pp_1f1b_plain lightning_unused tp_plain fsdp_detail ddp_one_python

hf_fsdp_plain lightning_plain accelerate_plain lightning_loader pp_1f1b_few run_ddp_saves deepspeed_zero3 fsdp_sockets
hf_ddp_evaluates ddp_one_synchronizes ddp_all_read llama_reduces_often pp_1f1b_loader gpt2_searches_unused
ddp_one_reads fsdp_checks deepspeed_zero2 llama_whole_unit fsdp_plain ddp_all_copy llama_linear_units
gpt2_ddp_tuned ddp_plain_gpus ddp_accumulates ddp_detail
"""

JOBS: dict[str, Job] = {name: _KNOWN[name] for name in _ORDER.split()}
