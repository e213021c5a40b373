"""How do the GPUs of a job reach each other, is it the way it should be, and what went wrong? From NCCL's own words.

`communicators` says who communicates with whom, `transports` which way and whether it is the right one;
`transfer_errors` what a card's error means, `settings` which variables do harm, `watchdog` what torch's timeouts tell,
`topology` who shares a card, `bandwidths` how fast it is, `ras` what NCCL's own watch says; `report` joins them.
"""

from stepscope.analyzer.nccl.report import explain_nccl

__all__ = ["explain_nccl"]
