# Makes and mends the virtual environment of this checkout; sourced by the other scripts.
# ensure_venv runtime|dev: afterwards "$venv/bin" holds the locked packages and loradock itself.
# shellcheck shell=bash

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${LORADOCK_VENV:-$root/.venv}
[[ $venv == /* ]] || venv=$PWD/$venv
stamp=$venv/loradock.stamp
suits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'

say() { printf 'loradock: %s\n' "$*" >&2; }

die() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 71
}

declare -A locks=([runtime]=$root/docker/requirements.lock [dev]=$root/docker/requirements-dev.lock)

# What the environment of kind $1 is made from: where, which metadata of ours, which packages.
fingerprint() {
  printf '%s\n%s\n%s\n' "$1" "$root" "$venv"
  awk 'FNR == 1 { file++ } file == 1 && /^\[/ { drop = /^\[tool\./ && !/^\[tool\.setuptools/ } file == 2 || !drop' \
    "$root/pyproject.toml" "${locks[$1]}" | sha256sum
}

# The stamp is written last, so an interrupted installation has none. The dev lock holds all of the runtime lock.
is_ready() {
  local kind
  [[ -r $stamp && -x $venv/bin/python && -x $venv/bin/loradock ]] || return 1
  read -r kind <"$stamp" || return 1
  [[ $kind == "$1" || $kind == dev ]] && [[ $(<"$stamp") == "$(fingerprint "$kind")" ]]
}

# A Python 3.11 to 3.13 that runs (a version manager's shim may not) and can make an environment when $1 is "venv".
find_python() {
  local name needs=
  if [[ ${1:-} == venv ]]; then needs='import ensurepip, venv; '; fi
  for name in python3 python3.12 python3.13 python3.11; do
    if "$name" -c "$needs$suits" 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  return 1
}

find_uv() {
  local candidate
  for candidate in uv "$venv/bin/uv"; do
    if "$candidate" --version >/dev/null 2>&1; then
      printf '%s' "$candidate"
      return
    fi
  done
  return 1
}

check_machine() {
  local free_kib folder=$venv
  [[ $(uname -s) == Linux ]] || die "the locked packages are for Linux; this is $(uname -s)" \
    "use the container image, or a Linux machine"
  while [[ ! -d $folder ]]; do folder=$(dirname -- "$folder"); done
  free_kib=$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')
  if [[ ! -d $venv ]] && ((free_kib < 10 * 1024 * 1024)); then
    die "the environment needs about 10 GiB under $folder, which has $((free_kib / 1024 / 1024)) GiB free" \
      "free some space, or put it elsewhere: LORADOCK_VENV=/path/with/space ${0##*/}"
  fi
}

# Makes the empty environment with the Python of the machine; uv can fetch one where there is none.
create_venv() {
  local uv=$1 python
  if [[ -n $(ls -A "$venv" 2>/dev/null) && ! -e $venv/pyvenv.cfg ]]; then
    die "$venv holds files that are no virtual environment" "LORADOCK_VENV=/an/empty/folder ${0##*/}"
  fi
  if [[ -n $uv ]]; then
    python=$(find_python) || python=3.12
    "$uv" venv --quiet --clear --no-project --python "$python" "$venv"
    return
  fi
  if ! python=$(find_python venv); then
    if find_python >/dev/null; then
      die "this Python cannot make virtual environments (ensurepip or venv is missing)" \
        "apt-get install python3-venv"
    fi
    die "no working Python 3.11, 3.12 or 3.13 found" \
      "apt-get install python3 python3-venv, or install uv, which brings its own"
  fi
  "$python" -m venv --clear "$venv"
}

# An environment runs one checkout: another one would find its loradock re-pointed. Of a checkout that is gone, or an
# environment that was copied, the stamp says nothing.
refuse_another_checkout() {
  local lines=() other
  [[ -r $stamp ]] || return 0
  mapfile -t lines <"$stamp"
  other=${lines[1]:-$root}
  if [[ $other != "$root" && ${lines[2]:-} == "$venv" && -d $other ]]; then
    die "$venv is the environment of another checkout, $other" \
      "LORADOCK_VENV=$(printf %q "$root")/.venv $(printf %q "$0") ..., the environment of this checkout"
  fi
}

# How many packages of lock $1 are not installed in a version that it has. A package may have one for each Python.
missing_packages() {
  "$venv/bin/python" -I - "$1" <<'END'
import re
import sys
from importlib.metadata import distributions

def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()

installed = {(plain(each.metadata["Name"]), each.version) for each in distributions()}
with open(sys.argv[1], encoding="utf-8") as lock:
    pins = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", lock.read(), re.MULTILINE)
fitting = {plain(name) for name, version in pins if (plain(name), version) in installed}
print(len({plain(name) for name, _ in pins} - fitting))
END
}

# With all CPUs. As pip, it passes over files that this Python cannot read: templates, and code of other versions.
compile_packages() {
  local site
  say "compiling the packages"
  site=$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$venv/bin/python" -m compileall -qq -j 0 "$site" || [[ $? == 1 ]]
}

# What pip is told by its files and by PIP_ variables about $1, for a program that reads neither.
pip_setting() {
  local level
  for level in :env: install global; do
    if "$venv/bin/python" -m pip config get "$level.$1" 2>/dev/null; then return; fi
  done
}

# Installs lock $1 with the uv of our lock, which pip puts into a folder for the time being: 75 s for pip's 240.
install_by_fetched_uv() {
  local folder=$venv/.uv index cert
  rm -rf -- "$folder"
  mkdir -- "$folder"
  awk '/^uv==/ { found = 1 } found; found && !/\\$/ { exit }' "${locks[dev]}" >"$folder/uv.lock"
  index=$(pip_setting index-url) cert=$(pip_setting cert)
  if "${pip[@]}" --quiet --target "$folder" "${locked[@]}" -r "$folder/uv.lock" >&2 &&
    env ${index:+"UV_DEFAULT_INDEX=$index"} ${cert:+"SSL_CERT_FILE=$cert"} \
      "$folder/bin/uv" pip install --python "$venv/bin/python" --compile-bytecode "${locked[@]}" -r "$1" >&2; then
    rm -rf -- "$folder"
    return
  fi
  rm -rf -- "$folder"
  say "uv cannot install them here; pip does, which takes longer"
  return 1
}

# Wheels only: no package runs code of its own while it is installed.
locked=(--require-hashes --no-deps --only-binary :all:)

install() {
  local kind=$1 lock=${locks[$1]} uv installer missing total
  local -a pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
  rm -f "$stamp"
  uv=$(find_uv) || uv=
  if ! "$venv/bin/python" -c "$suits" 2>/dev/null; then
    create_venv "$uv"
  elif [[ -z $uv && ! -x $venv/bin/pip ]]; then
    "$venv/bin/python" -m ensurepip >&2
  fi
  missing=$(missing_packages "$lock") total=$(grep -c '^[a-z0-9].*==' "$lock")
  if ((missing > total / 2)); then
    say "installing $missing locked packages ($kind) into $venv, once; several GB, a few minutes"
  elif ((missing)); then
    say "installing $missing of $total locked packages ($kind) into $venv"
  else
    say "all $total locked packages ($kind) are in $venv; loradock is installed again"
  fi
  installer=("${pip[@]}")
  if [[ -n $uv ]]; then
    installer=("$uv" pip install --python "$venv/bin/python")
    # As pip does by itself: where Python may not write byte-code, each start would compile its libraries again (10 s).
    if ((missing)); then "${installer[@]}" --compile-bytecode "${locked[@]}" -r "$lock" >&2; fi
  elif ((missing > total / 2)); then
    # pip compiles with one CPU: for all packages 50 s longer than both of two.
    if ! install_by_fetched_uv "$lock"; then
      "${pip[@]}" --no-compile "${locked[@]}" -r "$lock" >&2
      compile_packages
    fi
  elif ((missing)); then
    "${pip[@]}" "${locked[@]}" -r "$lock" >&2
  fi
  "${installer[@]}" --quiet --no-deps --no-build-isolation -e "$root" >&2
  fingerprint "$kind" >"$stamp.new"
  mv "$stamp.new" "$stamp"
  say "ready"
}

# The kind that this environment should have: one that was made for development stays so.
wanted_kind() {
  local made=
  if [[ -r $stamp ]]; then read -r made <"$stamp" || made=; fi
  if [[ $made == dev ]]; then printf dev; else printf '%s' "$1"; fi
}

ensure_venv() {
  refuse_another_checkout
  is_ready "$1" && return
  check_machine
  mkdir -p "${venv%/*}"
  # One installation at a time; a second caller waits and then finds it done.
  (
    if command -v flock >/dev/null; then
      flock -n 9 || { say "waiting for another installation into $venv"; flock 9; }
    fi
    is_ready "$1" || install "$(wanted_kind "$1")"
  ) 9>"$venv.lock"
}
