#!/usr/bin/env bash
# Builds isulad-ts and installs it on this machine by its own command, or tries it in one folder. See usage below.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
usage: ./install.sh [OPTION…]             build, then isulad-ts install OPTION… (root)
       ./install.sh --trial [DIR]         run a pod with everything in one folder, then clean up
       ./install.sh --trial [DIR] --keep  the same, and leave it running
       ./install.sh --stop DIR            end a trial that was kept
       ./install.sh --uninstall [--force] isulad-ts uninstall
       ./install.sh --bun                 print the path of a Bun that builds this; npm gets it if need be
TEXT
}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
need_root() { [ "$(id -u)" = 0 ] || die "this needs root: try sudo $0 $*"; }

# -- Bun and the build ----------------------------------------------------------------------------

bun_version() { sed -n 's/^ *"bun": "\([0-9.]*\)".*/\1/p' "$here/package.json"; }

bun_platform() {
  local cpu libc=
  case $(uname -m) in
    x86_64) cpu=x64 ;;
    aarch64) cpu=aarch64 ;;
    *) die "Bun does not run on $(uname -m): take an executable that was built elsewhere" ;;
  esac
  ls /lib/ld-musl-* >/dev/null 2>&1 && ! [ -e /lib64/ld-linux-x86-64.so.2 ] && libc=-musl
  echo "bun-linux-$cpu$libc"
}

# The path of a Bun of the version that package.json names, or of a later one.
bun_path() {
  local version platform cache bun
  version=$(bun_version)
  platform=$(bun_platform)
  cache="$here/.cache/bun-$version"
  for bun in "$(command -v bun || true)" "$cache/node_modules/@oven/$platform/bin/bun"; do
    if [ -n "$bun" ] && bun_is_new_enough "$bun" "$version"; then
      echo "$bun"
      return 0
    fi
  done
  mkdir -p "$cache"
  say "getting Bun $version from npm"
  have npm || install_npm || die "please install Bun $version or npm"
  npm install --prefix "$cache" --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error \
    "@oven/$platform@$version" >&2 || die "npm cannot install @oven/$platform@$version"
  bun="$cache/node_modules/@oven/$platform/bin/bun"
  bun_is_new_enough "$bun" "$version" ||
    die "the Bun that npm installed does not run on this machine (it needs a CPU with AVX2 and glibc 2.17 or musl)"
  echo "$bun"
}

install_npm() {
  say "installing npm"
  if have apt-get; then
    apt_get update || say "apt-get update failed; going on with the lists that are here"
    apt_get install -y --no-install-recommends npm
  else
    dnf install -y npm >&2
  fi
}

# Repeats apt-get for up to five minutes while another program holds a lock, as apt-daily does after the first boot.
apt_get() {
  local output end=$((SECONDS + 300))
  until output=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" 2>&1); do
    if [ "$SECONDS" -ge "$end" ] || ! grep -qE 'Could not get lock|Unable to lock' <<<"$output"; then
      echo "$output" >&2
      return 1
    fi
    sleep 1
  done
}

bun_is_new_enough() {
  local found
  found=$("$1" --version 2>/dev/null) || return 1
  [ "$(printf '%s\n%s\n' "$2" "$found" | sort -V | head -n 1)" = "$2" ]
}

# Leaves the executable's path in $built.
build() {
  built="$here/dist/isulad-ts"
  local sources=("$here"/{src,proto,package.json,bun.lock,dist/{build.ts,daemon.json,isulad-ts.service,10-isulad.conflist},docs/installation.md})
  if [ -x "$built" ] && [ -z "$(find "${sources[@]}" -newer "$built" -type f -print -quit)" ]; then
    return 0
  fi
  local bun log install=(install --frozen-lockfile)
  bun=$(bun_path)
  log=$(mktemp)
  say "building dist/isulad-ts"
  # Without a developer's packages (linters, Deno) unless they are here already.
  [ -d "$here/node_modules/oxlint" ] || install+=(--production)
  # The shell that `bun run` starts finds this Bun too.
  (cd "$here" && PATH="$(dirname "$bun"):$PATH" && "$bun" "${install[@]}" && "$bun" run build) >"$log" 2>&1 ||
    { cat "$log" >&2; rm -f "$log"; die "the build failed"; }
  rm -f "$log"
}

# -- what was asked -------------------------------------------------------------------------------

# shellcheck source=dist/trial.sh
source "$here/dist/trial.sh"
mode=install dir="" keep=no options=()
while [ $# -gt 0 ]; do
  case $1 in
    --trial) mode=trial ;;
    --stop) mode=stop ;;
    --uninstall) mode=uninstall ;;
    --bun) mode=bun ;;
    --keep) keep=yes ;;
    --root) options+=("$1" "${2:-}"); shift $(($# > 1)) ;;
    -h | --help) usage; exit 0 ;;
    -*) options+=("$1") ;;
    *) [ -z "$dir" ] || { usage >&2; exit 2; }; dir=$1 ;;
  esac
  shift
done
case $mode in
  install | uninstall) [ "$dir$keep" = no ] || { usage >&2; exit 2; } ;;
  *) [ ${#options[@]} = 0 ] || { usage >&2; exit 2; } ;;
esac
case $mode in
  trial) trial "$dir" "$keep" ;;
  stop) need_root --stop; [ -d "$dir" ] || die "--stop needs the trial's folder"; trial_end "$(cd "$dir" && pwd)" ;;
  bun) bun_path ;;
  install | uninstall) build; exec "$built" "$mode" "${options[@]}" ;;
esac
