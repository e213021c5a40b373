"""Cases of several GPUs in their order: first those that no call has recorded yet, the most important first."""

from __future__ import annotations

from benchmarks.labelled_runs.communication_jobs import EXCHANGE_JOBS
from benchmarks.labelled_runs.job import Job
from benchmarks.labelled_runs.rank_jobs import RANK_JOBS
from benchmarks.several_gpus.layout_jobs import LAYOUT_JOBS
from benchmarks.several_gpus.trainer_jobs import TRAINER_JOBS

_KNOWN = TRAINER_JOBS | LAYOUT_JOBS | {job.name: job for job in (*RANK_JOBS, *EXCHANGE_JOBS)}

_ORDER = """
hf_fsdp_full_shard run_hf_python llama_full_gradients pp_1f1b_plain lightning_unused tp_plain ddp_sockets fsdp_detail
lightning_loader pp_1f1b_few hf_fsdp_plain run_ddp_saves hf_ddp_evaluates ddp_one_synchronizes llama_reduces_often
lightning_plain accelerate_plain pp_1f1b_loader deepspeed_zero3 fsdp_sockets

ddp_all_read gpt2_searches_unused ddp_one_reads fsdp_checks deepspeed_zero2 llama_whole_unit fsdp_plain ddp_all_copy
llama_linear_units gpt2_ddp_tuned ddp_plain_gpus ddp_accumulates ddp_detail

hf_ddp_plain accelerate_reduces bert_small_buckets tp_python hf_fsdp_python pp_1f1b_uneven pp_gpipe_few
hf_ddp_loader accelerate_uneven lightning_evaluates hf_ddp_saves ddp_shared_gpu accelerate_reads ddp_one_python
"""

JOBS: dict[str, Job] = {name: _KNOWN[name] for name in _ORDER.split()}
