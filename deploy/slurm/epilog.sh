#!/usr/bin/env bash
# Slurm Epilog: did the job leave its GPUs with errors? Asks the driver only, which takes about a second.
#
#   slurm.conf:  Epilog=/etc/slurm/epilog.d/stepscope.sh
#
# STEPSCOPE: the command. STEPSCOPE_PREFLIGHT_LOGS: where reports are kept.
set -u
stepscope=${STEPSCOPE:-stepscope}
logs=${STEPSCOPE_PREFLIGHT_LOGS:-/var/log/stepscope}
job=${SLURM_JOB_ID:-unknown}

[[ -n ${SLURM_JOB_GPUS:-} ]] || exit 0
command -v "$stepscope" >/dev/null || exit 0
mkdir -p "$logs"
report=$logs/epilog-$job.txt

timeout --kill-after=10 60 "$stepscope" preflight --checks state --gpus "$SLURM_JOB_GPUS" >"$report" 2>&1
code=$?
case $code in
  1 | 4) reason=$(grep -m 1 -E '^(FAIL|stepscope:)' "$report" | cut -c 1-200) ;;
  124 | 137) reason="the driver hangs" ;;
  *) exit 0 ;;
esac
logger -t stepscope "after job $job: $reason"
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="stepscope after job: $reason"
exit 0 # the node is drained already, with the reason
