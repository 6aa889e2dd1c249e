"""Shell and Python that run on a box: install Stoker, start a run in a session of its own, ask about it."""

EXTRAS = "train,data,store"
"""Of Stoker, that are installed."""

SETUP = """
cd {base}
# One at a time: an interrupted connection leaves its installation running. The link names the process.
until ln -s $$ env.lock 2>/dev/null; do
  if kill -0 "$(readlink env.lock)" 2>/dev/null; then sleep 1; else rm -f env.lock; fi
done
trap 'rm -f env.lock' EXIT
# One environment per version of Stoker: a running training keeps its own.
new=envs/{mark}
if [ -e $new/.stoker ] && $new/bin/python -c 'import stoker' 2>/dev/null; then ln -sfn $new env; exit 0; fi
rm -rf $new
mkdir -p envs
if [ ! -e env/.stoker ] || [ "$(cat env/.python)" != {python} ] || ! cp -al env/. $new 2>/dev/null; then
  rm -rf $new
  {python} -m venv --system-site-packages --without-pip $new
  lib=$($new/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The image's Python may itself be in an environment, whose packages a new one does not see.
  {python} -c 'import site; print("\\n".join(site.getsitepackages()))' > "$lib/image.pth"
  $new/bin/python -m pip --version >/dev/null 2>&1 || $new/bin/python -m ensurepip >/dev/null
fi
rm -f $new/.stoker $new/.python $new/constraints.txt
echo {python} > $new/.python
# The image's own torch is kept, whatever version it is.
$new/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
  > $new/constraints.txt 2>/dev/null || : > $new/constraints.txt
$new/bin/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall {wheel}
$new/bin/python -m pip install -q --disable-pip-version-check --constraint $new/constraints.txt {wheel}{extras}
touch $new/.stoker
ln -sfn $new env
"""
"""`env` links to the newest environment; the next one starts as a hard-linked copy of it."""

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
for one in checkpoints/step-*; do if [ -e "$one/COMMIT.json" ]; then echo "committed $(basename "$one")"; fi; done
if [ -e events.jsonl ]; then echo events; fi
if [ -e data/report.json ]; then echo "report $(sha256sum < data/report.json)"; fi
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
