#!/usr/bin/env bash
# Slurm Prolog: are the job's GPUs fit? A node whose GPU failed is drained, and the job goes elsewhere.
#
#   slurm.conf:  Prolog=/etc/slurm/prolog.d/stepscope.sh    PrologFlags=Alloc    PrologEpilogTimeout=180
#
# It runs as root on each node of the job. STEPSCOPE: the command. STEPSCOPE_PREFLIGHT_SECONDS: for all of it.
# STEPSCOPE_PREFLIGHT_LOGS: where reports are kept. STEPSCOPE_EXPECTED_GPUS: how many whole GPUs the node has, also
# where MIG is on; a node with fewer is drained whichever GPUs the job has.
set -u
stepscope=${STEPSCOPE:-stepscope}
limit=${STEPSCOPE_PREFLIGHT_SECONDS:-120}
logs=${STEPSCOPE_PREFLIGHT_LOGS:-/var/log/stepscope}
expected=${STEPSCOPE_EXPECTED_GPUS:-} # 8, say; empty: as many as there are
if [[ ! $expected =~ ^[0-9]*$ ]]; then
  logger -t stepscope "STEPSCOPE_EXPECTED_GPUS is no number: $expected; it is passed over"
  expected=
fi
job=${SLURM_JOB_ID:-unknown}

[[ -n ${SLURM_JOB_GPUS:-} ]] || exit 0 # a job without GPUs
command -v "$stepscope" >/dev/null || exit 0
# in memory while it is made: neither a full disk nor a folder that cannot be had is a GPU's fault
report=/dev/null
for folder in /dev/shm /run /tmp "$logs"; do
  file=$(mktemp -p "$folder" stepscope.XXXXXX 2>/dev/null) || continue
  if printf '%65536s' '' 2>/dev/null >"$file"; then report=$file && break; fi # it has room for a report
  rm -f "$file"
done
trap '[[ $report == /dev/null ]] || rm -f "$report"' EXIT

# numbers are minor numbers, on machines with MIG they count instances; UUIDs from Slurm 25.11 on. A GPU
# that is named and not there fails; a MIG instance that there is not ends with 2, and the job starts.
timeout --kill-after=10 "$limit" "$stepscope" preflight --quick --slurm-gpus "$SLURM_JOB_GPUS" \
  ${expected:+"--expected-gpus=$expected"} >"$report" 2>&1
code=$?
kept=$logs/preflight-$job.txt
{ mkdir -p "$logs" && cp "$report" "$kept"; } 2>/dev/null || kept="no report: $logs cannot be written"

reason=
case $code in
  0) exit 0 ;;
  1) reason=$(grep -m 1 '^FAIL ' "$report" | cut -c 1-200) ;; # any program that breaks ends with 1
  4)
    reason=$(grep -m 1 -E '^(FAIL |stepscope:)' "$report" | cut -c 1-200)
    reason=${reason:-the driver does not answer}
    ;;
  124 | 137) reason="no answer within $limit s" ;;
esac
if [[ -z $reason ]]; then # wrong use, no torch, a broken installation: not the node's fault
  logger -t stepscope "preflight of job $job could not be made (exit code $code), see $kept"
  exit 0
fi
logger -t stepscope "preflight of job $job: $reason"
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="stepscope preflight: $reason"
exit 1
