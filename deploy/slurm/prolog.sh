#!/usr/bin/env bash
# Slurm Prolog: tests the job's GPUs. A node with a failed GPU is drained, and the job is requeued.
#
#   slurm.conf:  Prolog=/etc/slurm/prolog.d/stepscope.sh    PrologFlags=Alloc    PrologEpilogTimeout=180
#
# It runs as root on each node of the job. STEPSCOPE: the command. STEPSCOPE_PREFLIGHT_SECONDS: total time limit.
# STEPSCOPE_PREFLIGHT_LOGS: folder for reports. STEPSCOPE_EXPECTED_GPUS: number of physical GPUs of the node, also with
# MIG enabled; a node with fewer is drained, whichever GPUs the job has.
set -u
stepscope=${STEPSCOPE:-stepscope}
limit=${STEPSCOPE_PREFLIGHT_SECONDS:-120}
logs=${STEPSCOPE_PREFLIGHT_LOGS:-/var/log/stepscope}
expected=${STEPSCOPE_EXPECTED_GPUS:-} # for example 8; empty: not checked
if [[ ! $expected =~ ^[0-9]*$ ]]; then
  logger -t stepscope "STEPSCOPE_EXPECTED_GPUS is not a number: $expected; ignored"
  expected=
fi
job=${SLURM_JOB_ID:-unknown}

[[ -n ${SLURM_JOB_GPUS:-} ]] || exit 0 # a job without GPUs
command -v "$stepscope" >/dev/null || exit 0
# the report is written to memory: a full disk or a missing folder is not a GPU fault
report=/dev/null
for folder in /dev/shm /run /tmp "$logs"; do
  file=$(mktemp -p "$folder" stepscope.XXXXXX 2>/dev/null) || continue
  if printf '%65536s' '' 2>/dev/null >"$file"; then report=$file && break; fi # has room for a report
  rm -f "$file"
done
trap '[[ $report == /dev/null ]] || rm -f "$report"' EXIT

# Slurm names GPUs by minor number (with MIG: by instance), from 25.11 on by UUID. A missing GPU fails the check; a
# missing MIG instance exits with status 2, and the job starts.
timeout --kill-after=10 "$limit" "$stepscope" preflight --quick --slurm-gpus "$SLURM_JOB_GPUS" \
  ${expected:+"--expected-gpus=$expected"} >"$report" 2>&1
code=$?
kept=$logs/preflight-$job.txt
{ mkdir -p "$logs" && cp "$report" "$kept"; } 2>/dev/null || kept="no report: $logs cannot be written"

reason=
case $code in
  0) exit 0 ;;
  1) reason=$(grep -m 1 '^FAIL ' "$report" | cut -c 1-200) ;; # any broken program exits with status 1
  4)
    reason=$(grep -m 1 -E '^(FAIL |stepscope:)' "$report" | cut -c 1-200)
    reason=${reason:-the driver does not answer}
    ;;
  124 | 137) reason="no answer within $limit s" ;;
esac
if [[ -z $reason ]]; then # wrong options, no torch or a broken installation: not a node fault
  logger -t stepscope "preflight of job $job could not run (exit code $code), see $kept"
  exit 0
fi
logger -t stepscope "preflight of job $job: $reason"
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="stepscope preflight: $reason"
exit 1
