"""Shell and Python that run on a box: start a run in a session of its own, ask about it."""

START = """
mkdir -p {logs} {folder}
rm -f {logs}/launch.code {logs}/launch.pid
cd {folder}
"""
DETACHED = """
{python} - <<'END'
import subprocess
subprocess.Popen({command!r}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                 start_new_session=True)
END
"""
LAUNCH = 'echo $$ > "$0/launch.pid"; "$@" > "$0/launch.log" 2>&1 < /dev/null; echo $? > "$0/launch.code"'
LAUNCH_STATE = """
logs={run}/logs
if [ -e $logs/launch.pid ] && [ ! -e $logs/launch.code ]; then
  pid=$(cat $logs/launch.pid)
  said=$(tr '\\0' ' ' < /proc/$pid/cmdline 2>/dev/null || ps -o command= -p $pid 2>/dev/null || true)
  case "$said" in *launch.code*) echo "launching $pid" ;; esac
fi
if [ -e {run}/manifest.json ]; then echo known; fi
"""
END = """
children=$(ps -o pid= --ppid {pid} 2>/dev/null || pgrep -P {pid} || true)
kill -TERM $children {pid} 2>/dev/null || true
for i in $(seq 30); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.5; done
kill -KILL $children {pid} 2>/dev/null || true
"""
INSPECT = """
date -u +'now %Y-%m-%dT%H:%M:%S+00:00'
cd {run} 2>/dev/null || exit 0
for one in checkpoints/step-*; do
  if [ -e "$one/COMMIT.json" ]; then
    echo "committed $(basename "$one") $(sha256sum < "$one/COMMIT.json" | cut -d ' ' -f 1)"
  fi
done
if [ -e events.jsonl ]; then echo events; fi
if grep -q '"event": "step"' events.jsonl events/*.jsonl 2>/dev/null; then echo steps; fi
if [ -e data/report.json ]; then
  digest=$(sed -n 's/^ "digest": "\\([0-9a-f]*\\)".*/\\1/p' data/report.json)
  echo "report $(sha256sum < data/report.json | cut -d ' ' -f 1) $digest"
fi
"""
SWEEP = """
import json, os
wanted, top = set(json.loads({names!r})), {top!r}
for parent, _, names in os.walk(top):
    for name in names:
        path = os.path.join(parent, name)
        if os.path.relpath(path, top) not in wanted and ".stoker-part" not in parent:
            os.remove(path)
"""
