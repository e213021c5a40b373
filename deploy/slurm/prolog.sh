#!/usr/bin/env bash
# Slurm Prolog: tests the job's GPUs. A node with a failed GPU is drained, and the job is requeued.
#
#   slurm.conf:  Prolog=/etc/slurm/prolog.d/stepscope.sh    PrologFlags=Alloc    PrologEpilogTimeout=180
#
# Without torch (stepscope[agent] alone) or with a broken one the driver is asked, and syslog says that nothing was
# measured. It runs as root on each node of the job. STEPSCOPE: the command. STEPSCOPE_PREFLIGHT_SECONDS: total time
# limit. STEPSCOPE_PREFLIGHT_LOGS: folder for reports. STEPSCOPE_EXPECTED_GPUS: number of physical GPUs of the node, also
# with MIG enabled; a node with fewer is drained, whichever GPUs the job has.
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
if ! command -v "$stepscope" >/dev/null; then
  logger -t stepscope "GPUs before job $job are not checked: there is no command $stepscope"
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

# Slurm names GPUs by minor number (with MIG: by instance), from 25.11 on by UUID. A missing GPU fails the check; a
# missing MIG instance exits with status 2, and the job starts.
code=
reason=
check() { # LIMIT OPTIONS...: the exit code, and the reason to drain the node, if any
  timeout --kill-after=10 "$1" "$stepscope" preflight "${@:2}" --slurm-gpus "$SLURM_JOB_GPUS" \
    ${expected:+"--expected-gpus=$expected"} >"$report" 2>&1
  code=$?
  reason=
  case $code in
    1) reason=$(grep -m 1 '^FAIL ' "$report" | cut -c 1-200) ;; # any broken program exits with status 1
    4)
      reason=$(grep -m 1 -E '^(FAIL |stepscope:)' "$report" | cut -c 1-200)
      reason=${reason:-the driver does not answer}
      ;;
    124 | 137) reason="no answer within $1 s" ;;
  esac
}

check "$limit" --quick
not_run=
before=
if [[ $code != 0 && -z $reason ]]; then # no torch, wrong options or a broken installation: the driver can be asked
  not_run="nothing was measured (exit code $code: $(grep -m 1 '^stepscope:' "$report" | cut -c 1-200))"
  before=$(<"$report")$'\n'
  left=$((limit - SECONDS))
  check "$((left > 10 ? left : 10))" --checks state
fi
kept=$logs/preflight-$job.txt
{ mkdir -p "$logs" && { printf '%s' "$before" && cat "$report"; } >"$kept"; } 2>/dev/null || kept="no report: $logs cannot be written"

if [[ -z $reason ]]; then # what is left is not a node fault
  if [[ $code != 0 ]]; then
    logger -t stepscope "preflight of job $job could not run: $not_run; nor was the driver asked (exit code $code), see $kept"
  elif [[ -n $not_run ]]; then
    logger -t stepscope "preflight of job $job: $not_run, the driver reports no fault, see $kept"
  fi
  exit 0
fi
logger -t stepscope "preflight of job $job: $reason"
scontrol update NodeName="${SLURMD_NODENAME:-$(hostname -s)}" State=DRAIN Reason="stepscope preflight: $reason"
exit 1
