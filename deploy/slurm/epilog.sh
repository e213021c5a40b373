#!/usr/bin/env bash
# Slurm Epilog: drains the node if the job left its GPUs with errors. It asks the driver only, about one second.
#
#   slurm.conf:  Epilog=/etc/slurm/epilog.d/stepscope.sh
#
# STEPSCOPE: the command. STEPSCOPE_PREFLIGHT_LOGS: folder for reports. STEPSCOPE_EXPECTED_GPUS: number of physical GPUs
# of the node, also with MIG enabled; a node with fewer is drained.
set -u
stepscope=${STEPSCOPE:-stepscope}
logs=${STEPSCOPE_PREFLIGHT_LOGS:-/var/log/stepscope}
expected=${STEPSCOPE_EXPECTED_GPUS:-} # for example 8; empty: not checked
if [[ ! $expected =~ ^[0-9]*$ ]]; then
  logger -t stepscope "STEPSCOPE_EXPECTED_GPUS is not a number: $expected; ignored"
  expected=
fi
job=${SLURM_JOB_ID:-unknown}

[[ -n ${SLURM_JOB_GPUS:-} ]] || exit 0
if ! command -v "$stepscope" >/dev/null; then
  logger -t stepscope "GPUs after job $job are not checked: there is no command $stepscope"
  exit 0
fi
# the report is written to memory: a full disk or a missing folder is not a GPU fault
report=/dev/null
for folder in /dev/shm /run /tmp "$logs"; do
  file=$(mktemp -p "$folder" stepscope.XXXXXX 2>/dev/null) || continue
  if printf '%65536s' '' 2>/dev/null >"$file"; then report=$file && break; fi # has room for a report
  rm -f "$file"
done
trap '[[ $report == /dev/null ]] || rm -f "$report"' EXIT

timeout --kill-after=10 60 "$stepscope" preflight --checks state --slurm-gpus "$SLURM_JOB_GPUS" \
  ${expected:+"--expected-gpus=$expected"} >"$report" 2>&1
code=$?
kept=$logs/epilog-$job.txt
{ mkdir -p "$logs" && cp "$report" "$kept"; } 2>/dev/null || kept="no report: $logs cannot be written"

reason=
case $code in
  0) exit 0 ;;
  1) reason=$(grep -m 1 '^FAIL ' "$report" | cut -c 1-200) ;; # any broken program exits with status 1
  4)
    reason=$(grep -m 1 -E '^(FAIL |stepscope:)' "$report" | cut -c 1-200)
    reason=${reason:-the driver does not answer}
    ;;
  124 | 137) reason="the driver hangs" ;;
esac
if [[ -z $reason ]]; then # wrong options or a broken installation: not a node fault
  why=$(grep -m 1 '^stepscope:' "$report" | cut -c 1-200)
  logger -t stepscope "GPUs after job $job could not be checked (exit code $code: $why), see $kept"
  exit 0
fi
logger -t stepscope "after job $job: $reason"
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="stepscope after job: $reason"
exit 0 # the node is already drained with the reason
