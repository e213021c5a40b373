# Sourced by the other scripts with the extras they need: makes .venv once (again when pyproject.toml or the C sources
# change), adds what is missing, and puts it on PATH. A torch that `python3` can import is used as it is (a CUDA build on
# a GPU machine), also where `python3` belongs to a virtual environment.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=$1
pip=(.venv/bin/python -m pip install -qq --disable-pip-version-check)
stamp=.venv/.stepscope-installed
inputs="$(cat pyproject.toml scripts/env.sh $(find stepscope -path "*/native/*" | sort) | sha256sum)"

make_environment() {
  local python=${PYTHON:-python3} base torch_from options=()
  # an activated .venv of ours is no source of packages for itself
  if [[ "$("$python" -c 'import os, sys; print(os.path.realpath(sys.prefix))')" == "$(realpath -m .venv)" ]]; then
    python="$("$python" -c 'import sys; print(sys._base_executable)')"
  fi
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$python is older than Python 3.11; name a newer one: PYTHON=python3.12 $0" >&2
    exit 2
  fi
  base="$("$python" -c 'import sys; print(sys._base_executable)')"
  torch_from="$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null || true)"
  if "$base" -c 'import torch' 2>/dev/null; then
    options+=(--system-site-packages)
    torch_from=
  fi
  rm -f .venv/lib/python3.*/site-packages/_torch_from.pth
  "$base" -m venv "${options[@]}" .venv
  "${pip[@]}" --no-deps --editable . # before the line below, whose build tools would take part in building ours
  if [[ $torch_from ]]; then # the packages of the virtual environment that has torch, .pth files included
    echo "import site; site.addsitedir('$torch_from')" >"$(echo .venv/lib/python3.*/site-packages)/_torch_from.pth"
  fi
  if ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    "${pip[@]}" "torch==2.13.0"
  fi
}

# the stamp holds what was installed from, then the sets of extras
if [[ ! -f $stamp || "$(head -n 1 "$stamp")" != "$inputs" ]]; then
  echo "setting up .venv (once)..." >&2
  make_environment
  echo "$inputs" >"$stamp"
fi
if ! grep -qxF "$extras" <(tail -n +2 "$stamp"); then
  echo "installing stepscope[$extras] into .venv (once)..." >&2
  "${pip[@]}" "stepscope[$extras]" # the installed checkout, with what these extras need
  echo "$extras" >>"$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
