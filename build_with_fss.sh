#!/usr/bin/env bash
# Builds the image with its wheels, compile trees and records on shared storage:
# build_with_fss.sh /mnt/shared/tmp [options of `loradock build`]
set -euo pipefail
if (($# == 0)) || [[ $1 == -* ]]; then
  printf 'error: the directory on shared storage is missing\nhint: %s /mnt/shared/tmp [--tag NAME ...]\n' "$0" >&2
  exit 64
fi
if [[ ! -d $1 ]]; then
  printf 'error: there is no directory %s\nhint: mount the shared storage, or: mkdir -p %q\n' "$1" "$1" >&2
  exit 66
fi
exec "$(dirname -- "${BASH_SOURCE[0]}")/scripts/run" build --scratch "$1" "${@:2}"
