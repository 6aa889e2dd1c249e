# Facts of this machine, one per line: a word, a tab, a value. Changes nothing; prints names of variables, no values.
# Set before it: `root`, `probe_python` (a Python program), and the lists `packages`, `places`, `signs`, `instances`, `interpreters`.
set +e
cd /
say() { printf '%s\t%s\n' "$1" "$2"; }
bounded() { if command -v timeout >/dev/null; then timeout "$@"; else shift; "$@"; fi; }

say system "$(uname -s)"
say hostname "$(uname -n)"
say architecture "$(uname -m)"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc //p')"
say user "$(id -un)"
say home "$HOME"
say processor "$(sed -n 's/^model name[[:space:]]*: //p' "$root/proc/cpuinfo" 2>/dev/null | head -n 1)"
say cpus "$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
say host_cpus "$(grep -c '^processor' "$root/proc/cpuinfo" 2>/dev/null)"
say memory_kib "$(sed -n 's/^MemTotal:[[:space:]]*\([0-9]*\) kB/\1/p' "$root/proc/meminfo" 2>/dev/null)"

# The container's limits: of its cgroup and all parents, for cgroups v2 and v1.
groups() {
  printf '%s\n' "$root/sys/fs/cgroup" "$root/sys/fs/cgroup/$1"
  while IFS=: read -r _ controllers path; do
    case ",$controllers," in
      ,,) start=$root/sys/fs/cgroup ;;
      *,"$1",*) start=$root/sys/fs/cgroup/$1 ;;
      *) continue ;;
    esac
    while [ -n "$path" ] && [ "$path" != / ]; do
      printf '%s\n' "$start$path"
      path=${path%/*}
    done
  done <"$root/proc/self/cgroup"
}
groups cpu 2>/dev/null | while read -r folder; do
  [ -r "$folder/cpu.max" ] && say cpu_quota "$(cat "$folder/cpu.max")"
  [ -r "$folder/cpu.cfs_quota_us" ] && say cpu_quota "$(cat "$folder/cpu.cfs_quota_us") $(cat "$folder/cpu.cfs_period_us")"
done
groups memory 2>/dev/null | while read -r folder; do
  for name in memory.max memory.limit_in_bytes; do
    [ -r "$folder/$name" ] && say memory_limit "$(cat "$folder/$name")"
  done
done

query=index,name,memory.total,uuid,driver_version
rows() { bounded 20 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null; }
cards=$(rows "$query,compute_cap" || rows "$query")
[ -n "$cards" ] && printf '%s\n' "$cards" | while read -r line; do say gpu "$line"; done

for tool in bash curl flock git nvidia-smi rsync sbatch setsid sha256sum tar timeout tmux uv wget; do
  command -v "$tool" >/dev/null && say tool "$tool"
done

# Signs of platforms: variables of this login shell or of process 1 (names only, except for the instance's id).
variables=$({ env; tr '\0' '\n' <"$root/proc/1/environ"; } 2>/dev/null | grep '^[A-Za-z_][A-Za-z0-9_]*=' | sort -u)
for name in $signs; do
  printf '%s\n' "$variables" | grep -q "^$name=" && say variable "$name"
done
for name in $instances; do
  printf '%s\n' "$variables" | sed -n "s/^$name=/instance	$name	/p" | head -n 1
done

# A network disk whose server is gone never answers.
disk() { bounded 10 test -d "$root$1" && say disk "$1	$(test -w "$root$1" && echo yes || echo no )	$(bounded 10 df -Pk "$root$1" 2>/dev/null | tail -n 1)"; }
printf '%s\n' "$places" | while read -r place; do
  case $place in '$HOME'*) place=$HOME${place#'$HOME'} ;; '$TMPDIR'*) place=${TMPDIR:-/tmp} ;; esac
  [ -e "$root$place" ] && say path "$place"
  disk "$place"
done
disk "$HOME"
disk /
bounded 20 df -Pk 2>/dev/null | while read -r device _ _ _ _ mount; do
  case $device in /dev/*|*:*|//*) bounded 10 test -w "$mount" && disk "$mount" ;; esac
done

# Every Python, each folder once, within a time limit.
began=$(date +%s)
{
  printf '%s\n' "$interpreters"
  command -v python3
  command -v python
  for folder in "$VIRTUAL_ENV" "$CONDA_PREFIX" "$HOME"/miniconda3 "$HOME"/anaconda3 "$HOME"/miniforge3 "$HOME"/venv \
    "$HOME"/.venv /opt/conda /opt/miniconda3 /opt/venv /usr /usr/local; do
    [ -n "$folder" ] && for name in python3 python; do printf '%s\n' "$folder/bin/$name"; done
  done
  ls -d "$HOME"/miniconda3/envs/*/bin/python /opt/conda/envs/*/bin/python 2>/dev/null
} | { seen=' '; count=0; while read -r path; do
    [ -x "$path" ] || continue
    folder=$(cd "$(dirname "$path")" && pwd -P)
    case $seen in *" $folder "*) continue ;; esac
    seen="$seen$folder "
    count=$((count + 1))
    [ "$count" -gt 12 ] && break
    [ $(($(date +%s) - began)) -gt 120 ] && break
    answer=$(CUDA_VISIBLE_DEVICES= bounded 60 "$path" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null && echo yes)
    [ -n "$answer" ] || continue
    unset CUDA_VISIBLE_DEVICES
    answer=$(CUDA_DEVICE_ORDER=PCI_BUS_ID bounded 120 "$path" -c "$probe_python" "${cards:+try}" $packages 2>/dev/null </dev/null)
    [ -n "$answer" ] && say python "$path	$answer"
  done; }
true
