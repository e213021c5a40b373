# Sourced by the other scripts: makes .venv once (again when pyproject.toml or the C sources change), puts it on PATH.
# A torch that is already installed for this Python (a CUDA build on a GPU machine) is used as it is.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
# the interpreter itself: asked through an active environment, it would call that environment's torch the machine's
python=$("$python" -c 'import sys; print(sys._base_executable)')
stamp=.venv/.stepscope-installed
wanted="$(cat pyproject.toml scripts/env.sh $(find stepscope -path "*/native/*") | sha256sum)"

if [[ ! -f $stamp || "$(cat "$stamp")" != "$wanted" ]]; then
  echo "setting up .venv (once)..." >&2
  options=()
  if "$python" -c 'import torch' 2>/dev/null; then
    options+=(--system-site-packages)
  fi
  "$python" -m venv "${options[@]}" .venv
  if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    .venv/bin/pip install --quiet "torch==2.13.0"
  fi
  .venv/bin/pip install --quiet --editable ".[all,dev]"
  echo "$wanted" > "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
