#!/usr/bin/env bash
# Installs isulad-ts on this machine, or tries it in one folder. See usage below.
set -euo pipefail
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=/usr/local/bin/isulad-ts
config=/etc/isulad/daemon.json
unit=/etc/systemd/system/isulad-ts.service
cni_list=/etc/cni/net.d/10-isulad.conflist
# What we put where, with its checksum: --uninstall takes back only what nobody changed.
manifest=/usr/local/share/isulad-ts/installed

usage() {
  cat <<'TEXT'
usage: ./install.sh                       install (root): packages that lack, executable,
                                          configuration, CNI list, systemd unit
       ./install.sh --trial [DIR]         run a pod with everything in one folder, then clean up
       ./install.sh --trial [DIR] --keep  the same, and leave it running
       ./install.sh --stop DIR            end a trial that was kept
       ./install.sh --uninstall [--force] take the installation back, but no data;
                                          refused while pods run, unless forced
       ./install.sh --bun                 print the path of a Bun that builds this, got if need be
TEXT
}

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
need_root() { [ "$(id -u)" = 0 ] || die "this needs root: try sudo $0 $*"; }
systemd_runs() { [ -d /run/systemd/system ]; }

# -- what the machine lacks -----------------------------------------------------------------------

# A person's PATH on Debian lacks these folders, where runc and iptables are.
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

# The names of what lacks, by apt's and by dnf's name: "apt|dnf".
lacking() {
  have runc || have crun || echo "runc|runc"
  have_cni || echo "containernetworking-plugins|containernetworking-plugins"
  have iptables || echo "iptables|iptables-nft"
  have ip || echo "iproute2|iproute"
  have unshare || echo "util-linux|util-linux"
}

have_cni() {
  local dir plugin
  for dir in /opt/cni/bin /usr/lib/cni /usr/libexec/cni; do
    for plugin in bridge host-local loopback portmap; do
      [ -x "$dir/$plugin" ] || continue 2
    done
    return 0
  done
  return 1
}

apt_updated=no
# $1 is "apt|dnf", each a package or several.
install_packages() {
  local log
  log=$(mktemp)
  if have apt-get; then
    if [ $apt_updated = no ]; then
      apt-get update >"$log" 2>&1 || say "apt-get update failed; going on with the lists that are here"
      apt_updated=yes
    fi
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${1%|*} >"$log" 2>&1 ||
      { cat "$log" >&2; rm -f "$log"; return 1; }
  elif have dnf; then
    # shellcheck disable=SC2086
    dnf install -y ${1#*|} >"$log" 2>&1 || { cat "$log" >&2; rm -f "$log"; return 1; }
  else
    say "neither apt-get nor dnf is here to install ${1%|*}"
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

install_lacking() {
  local names apt dnf
  names=$(lacking)
  [ -n "$names" ] || return 0
  apt=$(cut -d'|' -f1 <<<"$names" | tr '\n' ' ')
  dnf=$(cut -d'|' -f2 <<<"$names" | tr '\n' ' ')
  say "installing $apt"
  install_packages "$apt|$dnf" || die "please install by hand: $apt"
  names=$(lacking)
  [ -z "$names" ] || die "still lacking after the installation: $(cut -d'|' -f1 <<<"$names" | tr '\n' ' ')"
}

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
  have npm || install_packages "npm|npm" || die "please install Bun $version or npm"
  npm install --prefix "$cache" --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error \
    "@oven/$platform@$version" >&2 || die "npm cannot install @oven/$platform@$version"
  bun="$cache/node_modules/@oven/$platform/bin/bun"
  bun_is_new_enough "$bun" "$version" ||
    die "the Bun that npm installed does not run on this machine (it needs a CPU with AVX2 and glibc 2.17 or musl)"
  echo "$bun"
}

bun_is_new_enough() {
  local found
  found=$("$1" --version 2>/dev/null) || return 1
  [ "$(printf '%s\n%s\n' "$2" "$found" | sort -V | head -n 1)" = "$2" ]
}

# Leaves the executable's path in $built.
build() {
  built="$here/dist/isulad-ts"
  if ! [ -d "$here/src" ]; then
    [ -x "$here/isulad-ts" ] && built="$here/isulad-ts"
    [ -x "$built" ] || die "neither the sources nor an executable lie beside install.sh"
    return 0
  fi
  if [ -x "$built" ] && [ -z "$(find "$here"/{src,proto,package.json,bun.lock,dist/build.ts} -newer "$built" -type f -print -quit)" ]; then
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

# -- on this machine ------------------------------------------------------------------------------

# put FILE PATH MODE: through a file beside it, so that a running executable is left alone.
put() {
  mkdir -p "$(dirname "$2")"
  install -m "$3" "$1" "$2.new"
  mv -f "$2.new" "$2"
  record "$2"
}

record() {
  mkdir -p "$(dirname "$manifest")"
  touch "$manifest"
  grep -v "  $1\$" "$manifest" >"$manifest.new" || true
  sha256sum "$1" >>"$manifest.new"
  mv -f "$manifest.new" "$manifest"
}

# True where the file is one that we put and nobody changed.
is_ours() { [ -f "$manifest" ] && [ -f "$1" ] && grep -qxF "$(sha256sum "$1")" "$manifest"; }

install_all() {
  need_root
  if systemd_runs && systemctl is-active -q isulad; then
    die "iSulad's own service runs on the same socket and folders; end it first: systemctl disable --now isulad"
  fi
  install_lacking
  build
  local running=no
  if systemd_runs && systemctl is-active -q isulad-ts; then running=yes; fi
  put "$built" "$program" 0755
  say "$program: $("$program" --version | head -n 1)"
  install_config
  if ! has_cni_list || is_ours "$cni_list"; then
    put "$here/dist/10-isulad.conflist" "$cni_list" 0644
    say "$cni_list: pods get addresses of 10.87.0.0/16 (a cluster's CNI add-on may replace it)"
  fi
  if ! systemd_runs; then
    say "no systemd here; start it with: isulad-ts --config $config"
    return 0
  fi
  put "$here/dist/isulad-ts.service" "$unit" 0644
  systemctl daemon-reload
  systemctl enable -q isulad-ts
  # Pods live through a restart, so an upgrade takes effect at once.
  if [ $running = yes ]; then systemctl restart isulad-ts; else systemctl start isulad-ts; fi
  if ! wait_answer; then
    journalctl -u isulad-ts --no-pager -n 20 >&2
    die "isulad-ts.service does not answer"
  fi
  say "isulad-ts.service runs; the kubelet wants --container-runtime-endpoint=$(installed_host)"
}

# The first of "hosts" in effect.
installed_host() {
  local host
  host=$("$program" config show --config "$config" 2>/dev/null | sed -n 's/^hosts *\["\([^"]*\)".*/\1/p')
  echo "${host:-unix:///var/run/isulad.sock}"
}

client() { ISULAD_HOST=$(installed_host) "$program" "$@"; }

wait_answer() {
  for _ in $(seq 150); do
    client version >/dev/null 2>&1 && return 0
    sleep 0.2
  done
  return 1
}

has_cni_list() {
  [ -n "$(find -L /etc/cni/net.d -maxdepth 1 \( -name '*.conf' -o -name '*.conflist' -o -name '*.json' \) -print -quit 2>/dev/null)" ]
}

install_config() {
  if [ -e "$config" ] && ! is_ours "$config"; then
    say "$config is yours and stays as it is"
  else
    local made
    made=$(mktemp)
    cp "$here/dist/daemon.json" "$made"
    if systemd_runs; then sed -i 's/"systemd-cgroup": false/"systemd-cgroup": true/' "$made"; fi
    put "$made" "$config" 0644
    rm -f "$made"
  fi
  "$program" config check "$config" >&2 || die "please correct $config and run this again"
}

uninstall() {
  need_root --uninstall
  local force=$1 path pod
  if pods_run; then
    [ "$force" = yes ] ||
      die "pods run under isulad-ts; drain the node first, or use --uninstall --force, which removes them"
    say "removing the pods"
    client version >/dev/null 2>&1 || start_again || say "the daemon does not start: what it ran may be left"
    for pod in $(client pods -q || true); do client rmp -f "$pod" >/dev/null || true; done
  fi
  if systemd_runs && [ -f "$unit" ]; then systemctl disable -q --now isulad-ts || true; fi
  end_processes "$program"
  # The parents of pods that brought none; a cgroup with something in it stays.
  if systemd_runs; then systemctl stop -q isulad.slice 2>/dev/null || true; fi
  remove_cgroup isulad
  for path in "$unit" "$program" "$config" "$cni_list"; do
    if is_ours "$path"; then
      rm -f "$path"
    elif [ -e "$path" ]; then
      say "$path was not put there by this script, or was changed since: it stays"
    fi
  done
  rm -rf "$(dirname "$manifest")"
  rmdir "$(dirname "$config")" 2>/dev/null || true
  if systemd_runs; then systemctl daemon-reload; fi
  say "isulad-ts is gone; its data (/var/lib/isulad) and the packages runc, CNI plugins and iptables stay"
}

# Pods by the daemon's word; where it is silent, containers below its monitor.
pods_run() {
  local listed pid
  [ -x "$program" ] || return 1
  if listed=$(client pods -q 2>/dev/null); then
    [ -n "$listed" ]
    return
  fi
  for pid in $(processes_of "$program"); do
    if grep -q . /proc/"$pid"/task/*/children 2>/dev/null; then return 0; fi
  done
  return 1
}

start_again() {
  if systemd_runs && [ -f "$unit" ]; then
    systemctl start isulad-ts || return 1
  else
    nohup "$program" --config "$config" >/dev/null 2>&1 </dev/null &
  fi
  wait_answer
}

# processes_of EXECUTABLE [TEXT]: the ids of those that run it, with TEXT in the command line.
processes_of() {
  local proc
  for proc in /proc/[0-9]*; do
    case $(readlink "$proc/exe" 2>/dev/null) in
      "$1" | "$1 (deleted)")
        if tr '\0' '\n' <"$proc/cmdline" 2>/dev/null | grep -qF -e "${2:-}"; then echo "${proc#/proc/}"; fi
        ;;
    esac
  done
}

# end_processes EXECUTABLE [TEXT]: the daemon first, then its monitor, which heeds no polite signal
# because it must outlive the daemon; without pods it holds nothing.
end_processes() {
  local pid monitors=()
  for pid in $(processes_of "$@"); do
    if tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qx monitor; then
      monitors+=("$pid")
    elif kill -TERM "$pid" 2>/dev/null; then
      wait_gone "$pid" || kill -KILL "$pid" 2>/dev/null || true
    fi
  done
  for pid in "${monitors[@]}"; do
    if kill -KILL "$pid" 2>/dev/null; then wait_gone "$pid" || true; fi
  done
}

wait_gone() {
  for _ in $(seq 50); do
    # A zombie is gone: its parent may be slow to ask.
    case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in "" | Z*) return 0 ;; esac
    sleep 0.1
  done
  return 1
}

# -- what was asked -------------------------------------------------------------------------------

# shellcheck source=dist/trial.sh
source "$here/dist/trial.sh"
mode=install dir="" keep=no force=no
while [ $# -gt 0 ]; do
  case $1 in
    --trial) mode=trial ;;
    --stop) mode=stop ;;
    --uninstall) mode=uninstall ;;
    --bun) mode=bun ;;
    --keep) keep=yes ;;
    --force) force=yes ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) [ -z "$dir" ] || { usage >&2; exit 2; }; dir=$1 ;;
  esac
  shift
done
case $mode in
  trial) trial "$dir" "$keep" ;;
  stop) need_root --stop; [ -d "$dir" ] || die "--stop needs the trial's folder"; trial_end "$(cd "$dir" && pwd)" ;;
  uninstall) uninstall "$force" ;;
  bun) bun_path ;;
  install) install_all ;;
esac
