# shellcheck shell=bash
# Runs a trial for install.sh (--trial, --stop): a daemon with all its files in one folder, and a pod.

trial() {
  need_root --trial
  local dir=$1 keep=$2
  build
  "$built" install --programs-only >&2 || die "programs that pods need are missing"
  if [ -z "$dir" ]; then
    dir=$(mktemp -d /var/tmp/isulad-ts.XXXXXX)
  else
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd)
    [ -z "$(ls -A "$dir")" ] || die "$dir is not empty (./install.sh --stop $dir ends a trial that was kept)"
  fi
  # A socket's path has at most 107 bytes, and the daemon's sockets are in subfolders.
  [ ${#dir} -le 50 ] || die "$dir is too long a path for the sockets in it"
  trial_dir=$dir
  if ! [ "$keep" = yes ]; then
    trap 'trial_end "$trial_dir"' EXIT
    # By itself, not by EXIT: Ctrl-C ends the command at work, too, and the trap of that failure is cut off by this one.
    trap 'trap "" INT TERM; trap - EXIT; trial_end "$trial_dir"; exit 130' INT TERM
  fi
  trial_files "$dir"
  say "starting the daemon from $dir/daemon.json"
  trial_start "$dir"
  trial_image "$dir"
  trial_pod "$dir"
  if [ "$keep" = yes ]; then
    trial_hints "$dir"
  else
    trap - EXIT
    trial_end "$dir"
    say "the trial is over; nothing is left of it"
  fi
}

trial_files() {
  local dir=$1 n bridge net
  # overlayfs does not work on top of overlayfs, which a container's root is.
  mkdir -p "$dir"/{graph,state,tmp,cni/net.d}
  if [ "$(stat -f -c %T "$dir")" = overlayfs ]; then
    mount -t tmpfs -o mode=0711 isulad-trial "$dir/graph"
  fi
  for n in $(seq 200 250) none; do
    [ "$n" != none ] || die "the networks 10.87.200.0/24 to 10.87.250.0/24 are all taken"
    bridge="isulad$n" net="10.87.$n"
    ip -4 route show | grep -q "^$net\." || ip link show "$bridge" >/dev/null 2>&1 || break
  done
  cat >"$dir/cni/net.d/10-trial.conflist" <<JSON
{
  "cniVersion": "1.0.0",
  "name": "$bridge",
  "plugins": [
    {
      "type": "bridge", "bridge": "$bridge", "isGateway": true, "ipMasq": true,
      "ipam": {
        "type": "host-local", "dataDir": "$dir/cni/leases",
        "ranges": [[{ "subnet": "$net.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
JSON
  cat >"$dir/daemon.json" <<JSON
{
  "hosts": ["unix://$dir/isulad.sock"],
  "graph": "$dir/graph",
  "state": "$dir/state",
  "pidfile": "$dir/isulad.pid",
  "cgroup-parent": "/$(trial_cgroup "$dir")",
  "cni-conf-dir": "$dir/cni/net.d",
  "enable-pod-events": true,
  "nri-support": true,
  "nri-socket-path": "$dir/nri.sock",
  "plugin-path": "$dir/nri/plugins",
  "plugin-config-path": "$dir/nri/conf.d"
}
JSON
  echo "$bridge" >"$dir/bridge"
  # shellcheck disable=SC2154 # install.sh's build sets it.
  echo "$built" >"$dir/executable"
}

trial_cgroup() { echo "isulad-trial-$(cksum <<<"$1" | cut -d' ' -f1)"; }

# Calls the trial's daemon.
trial_client() { TMPDIR="$1/tmp" ISULAD_HOST="unix://$1/isulad.sock" "$(cat "$1/executable")" "${@:2}"; }

trial_start() { trial_daemon "$1" || trial_failed "$1" "the daemon does not answer"; }

# Starts the daemon in a session of its own: Ctrl-C is for this script, which needs the daemon to remove the pods.
trial_daemon() {
  local dir=$1 pid
  setsid "$(cat "$dir/executable")" --config "$dir/daemon.json" >>"$dir/daemon.log" 2>&1 </dev/null &
  pid=$!
  for _ in $(seq 150); do
    trial_client "$dir" version >/dev/null 2>&1 && return 0
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  return 1
}

trial_failed() {
  say "the daemon's log ends with:"
  tail -n 20 "$1/daemon.log" >&2
  die "$2"
}

# Pulls busybox from Docker Hub, or makes an image of the same name from Debian's busybox-static.
trial_image() {
  local dir=$1
  say "pulling docker.io/library/busybox:latest"
  if timeout 60 env TMPDIR="$dir/tmp" ISULAD_HOST="unix://$dir/isulad.sock" \
    "$built" pull docker.io/library/busybox:latest >"$dir/pull.log" 2>&1; then
    return 0
  fi
  say "Docker Hub cannot be reached ($(tail -n 1 "$dir/pull.log")); making an image of busybox-static"
  busybox_archive "$dir"
  trial_client "$dir" load "$dir/busybox.tar" >/dev/null || trial_failed "$dir" "the image cannot be loaded"
}

# Makes a docker archive: one layer with busybox and a link for each of its applets.
busybox_archive() {
  local dir=$1 root=$1/busybox/root out=$1/busybox/image busybox applet layer arch=amd64
  busybox=$(static_busybox "$dir")
  [ "$(uname -m)" != aarch64 ] || arch=arm64
  mkdir -p "$root"/{bin,etc,root,dev,proc,sys,var} "$out"
  mkdir -m 1777 "$root/tmp"
  cp "$busybox" "$root/bin/busybox"
  for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
  done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
  echo 'root:x:0:' >"$root/etc/group"
  tar -C "$root" --owner=0 --group=0 --numeric-owner -cf "$out/layer.tar" .
  layer=$(sha256sum "$out/layer.tar" | cut -d' ' -f1)
  cat >"$out/config.json" <<JSON
{"architecture":"$arch","os":"linux","config":{"Env":["PATH=/bin"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
JSON
  echo '[{"Config":"config.json","RepoTags":["docker.io/library/busybox:latest"],"Layers":["layer.tar"]}]' >"$out/manifest.json"
  tar -C "$out" -cf "$dir/busybox.tar" manifest.json config.json layer.tar
  rm -rf "$dir/busybox"
}

# Prints the path of a static busybox: this machine's, or the package's, unpacked in the folder.
static_busybox() {
  local dir=$1/busybox/package found
  found=$(command -v busybox || true)
  if [ -z "$found" ] || ldd "$found" >/dev/null 2>&1; then
    mkdir -p "$dir"
    if have apt-get; then
      (cd "$dir" && chmod 777 . && apt-get download busybox-static && dpkg-deb -x ./*.deb .) >/dev/null 2>&1 ||
        (apt_get update && cd "$dir" && apt-get download busybox-static && dpkg-deb -x ./*.deb .) >/dev/null 2>&1 || true
      found=$(find "$dir" -path '*bin/busybox' -type f -print -quit)
    else
      dnf install -y busybox >/dev/null 2>&1 || true
      found=$(command -v busybox || true)
    fi
  fi
  [ -n "$found" ] || die "there is no busybox-static to make an image of"
  echo "$found"
}

trial_pod() {
  local dir=$1 id=""
  say "isulad-ts run busybox: a pod, its output live"
  echo
  # shellcheck disable=SC2016 # The pod's shell expands it.
  trial_client "$dir" run busybox sh -c \
    'echo "Hello from a pod: $(hostname), $(ip -4 -o addr show eth0 | grep -o "inet [0-9./]*")"' ||
    trial_failed "$dir" "the pod failed"
  echo
  say "a pod that stays; isulad-ts pods and ps tell its status"
  TMPDIR="$dir/tmp" ISULAD_HOST="unix://$dir/isulad.sock" setsid "$built" run --name trial busybox sh -c 'echo "I stay."; trap "exit 0" TERM; while :; do sleep 1; done' >"$dir/pod.log" 2>&1 &
  echo "$!" >"$dir/client.pid"
  # An emulated node takes two minutes.
  for _ in $(seq 3000); do
    grep -q 'I stay' "$dir/pod.log" && break
    kill -0 "$(cat "$dir/client.pid")" 2>/dev/null || break
    sleep 0.1
  done
  id=$(trial_client "$dir" ps -q | head -n 1)
  [ -n "$id" ] || { cat "$dir/pod.log" >&2; trial_failed "$dir" "the pod does not run"; }
  echo "$id" >"$dir/container"
  echo
  trial_client "$dir" pods
  trial_client "$dir" ps
  echo
  say "isulad-ts exec ${id:0:12} id: one command in it"
  echo
  # shellcheck disable=SC2016
  trial_client "$dir" exec "$id" sh -c 'id; echo "I am process $$ here."' ||
    trial_failed "$dir" "exec failed"
  echo
}

trial_hints() {
  local dir=$1
  cat <<TEXT
The trial goes on. Try, in a shell of root (sudo -s):

  export ISULAD_HOST=unix://$dir/isulad.sock PATH=$(dirname "$built"):\$PATH
  isulad-ts ps                            # also: pods, images, logs, inspect, --help
  isulad-ts exec $(cut -c1-12 "$dir/container") ip address
  isulad-ts run busybox wget -qO- http://example.com
  crictl -r unix://$dir/isulad.sock ps    # any CRI client
  tail -f $dir/daemon.log

To end it and take everything away:

  $0 --stop $dir
TEXT
}

# Removes the pods, by a daemon that is started for it if need be: containers outlive their daemon.
trial_pods_end() {
  local dir=$1 records="$1/graph/sandboxes"
  [ -n "$(ls -A "$records" 2>/dev/null)" ] || return 0
  timeout -k 1 20 env ISULAD_HOST="unix://$dir/isulad.sock" "$(cat "$dir/executable")" version >/dev/null 2>&1 ||
    trial_daemon "$dir" || trial_failed "$dir" "the daemon, which removes the pods, does not answer, so $dir stays"
  trial_client "$dir" rmp --all --force >/dev/null ||
    die "not all pods were removed, so $dir stays; correct this and run $0 --stop $dir"
}

# Removes everything of a trial, also after a partial start, so no failure but that of a pod may stop the rest.
trial_end() {
  local dir=$1 path bridge client
  set +e
  grep -qs '/isulad-trial-' "$dir/daemon.json" || die "$dir is not a trial's folder"
  say "stopping"
  client=$(cat "$dir/client.pid" 2>/dev/null)
  # It removes its pod, which it may just be making. Long after the start another process may have its id.
  if processes_of "$(cat "$dir/executable")" run | grep -qx "$client"; then
    kill -TERM "$client" && wait_gone "$client" || kill -KILL "$client"
  fi
  trial_pods_end "$dir"
  # Processes are found by the folder in their command lines.
  end_processes "$(cat "$dir/executable")" "$dir/"
  grep -o " $dir/[^ ]*" /proc/self/mountinfo | sort -ru | while read -r path; do umount "$path" || umount -l "$path"; done
  bridge=$(cat "$dir/bridge" 2>/dev/null)
  [ -n "$bridge" ] && ip link delete "$bridge" 2>/dev/null
  remove_cgroup "$(trial_cgroup "$dir")"
  rm -rf "$dir"
  set -e
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

# Removes the cgroups in every hierarchy of cgroup v1, or in the one of v2.
remove_cgroup() {
  local path
  for path in /sys/fs/cgroup/"$1" /sys/fs/cgroup/*/"$1"; do
    if [ -d "$path" ]; then find "$path" -depth -type d -exec rmdir {} + 2>/dev/null || true; fi
  done
}
