"""Probes which hubs and package indexes a machine reaches, and chooses those its runs use.

The candidates and the rule are in `facts.mirrors`; here is the script that runs on the machine.
"""

import os
import shlex
from pathlib import Path

from stoker import env
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import answers, mirrors, model_configs
from stoker.facts.mirrors import MirrorChoice, MirrorRoute, Network
from stoker.hosts.box_facts import BoxFacts
from stoker.rundir import inputs
from stoker.store import address

_SECONDS = 4

INDEX = r"""
# The index that pip of Python $1 uses. `config get` reads one file of several; before pip 10 there is no `config`.
stoker_index() {
 if said=$("$1" -m pip config list 2>/dev/null); then
  for section in install global; do
   index=$(printf '%s\n' "$said" | sed -n "s/^$section\.index-url='\(.*\)'\$/\1/p" | tail -n 1)
   [ -z "$index" ] || break
  done
 else
  index=
  for file in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" \
   /etc/xdg/pip/pip.conf /etc/pip.conf; do
   [ -n "$index" ] || [ ! -r "$file" ] || index=$(sed -n 's/^ *index[-_]url *[=:] *//p' "$file" | tail -n 1)
  done
 fi
 [ -z "$index" ] || echo "$index"
}
"""
"""A function for a POSIX shell."""
_ASK = r"""
stoker_now() {
 now=$(date +%s%N 2>/dev/null); case "$now" in *N|'') now=$(date +%s)000000000;; esac
 echo "$now"
}
stoker_python=$(command -v python3 || command -v python || echo "$HOME/miniconda3/bin/python")
stoker_ask_pip() {
 began=$(stoker_now)
 "$stoker_python" -m pip --version >/dev/null 2>&1 || return 0
 begun=$(stoker_now)
 "$stoker_python" -m pip --disable-pip-version-check index versions pip --retries 0 --timeout SECONDS \
  >/dev/null 2>&1 || return 0
 ms=$(( ($(stoker_now) - begun - (begun - began)) / 1000000 )); [ "$ms" -gt 0 ] || ms=0
 echo "reachable pip $ms"
}
stoker_ask() {
 if [ -n "$2" ]; then [ -r "$2" ] || return 0; . "$2" >/dev/null 2>&1 || return 0; fi
 began=$(stoker_now)
 if command -v curl >/dev/null 2>&1; then
  code=$(curl -sIL -o /dev/null -m SECONDS -w '%{http_code}' "$3" 2>/dev/null) || return 0
 elif command -v wget >/dev/null 2>&1; then
  code=$(wget -q -S --spider -T SECONDS -t 1 "$3" 2>&1 | sed -n 's/^ *HTTP\/[0-9.]* \([0-9]*\).*/\1/p' | tail -n 1)
 else
  code=$("$stoker_python" -c 'import sys, urllib.request as r
try: print(r.urlopen(r.Request(sys.argv[1], method="HEAD"), timeout=SECONDS).status)
except Exception as e: print(getattr(e, "code", 0))' "$3" 2>/dev/null) || return 0
 fi
 [ "${code:-0}" -ge 100 ] 2>/dev/null && [ "$code" -lt 500 ] || return 0
 echo "reachable $1 $(( ($(stoker_now) - began) / 1000000 ))"
}
"""


def script() -> str:
    """Lines for a POSIX shell: one `reachable ADDRESS MILLISECONDS` per answer, one `given NAME VALUE` per setting.

    And `token` where Hugging Face's client has one there, never what it is.
    """
    probes = "\n".join(f"( {_question(way)} ) &" for way in mirrors.ways())
    given = (
        '[ -z "${HF_ENDPOINT:-}" ] || echo "given HF_ENDPOINT $HF_ENDPOINT"\n'
        'index=${PIP_INDEX_URL:-$( (stoker_index "$stoker_python" || true) 2>/dev/null)}\n'
        '[ -z "$index" ] || echo "given PIP_INDEX_URL $index"\n'
        "login=${HF_TOKEN_PATH:-${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}/token}\n"
        '[ -z "${HF_TOKEN:-}${HUGGING_FACE_HUB_TOKEN:-}" ] && ! [ -s "$login" ] || echo "token"'
    )
    return f"{INDEX}{_ASK.replace('SECONDS', str(_SECONDS))}{probes}\n{given}\nwait"


def _question(way: MirrorRoute) -> str:
    if way.address == answers.PIP:
        return "stoker_ask_pip"
    return f"stoker_ask {shlex.join((way.address, way.file, way.asks or way.address))}"


def read(said: str) -> tuple[dict[str, int], dict[str, str]]:
    """Parse the output of `script`: reachable addresses, and variables that are set already."""
    words = [line.split(None, 2) for line in said.splitlines()]
    reachable = {w[1]: int(w[2]) for w in words if len(w) == 3 and w[0] == "reachable" and w[2].isdecimal()}
    given = {w[1]: env.without_secrets(w[2]) for w in words if len(w) == 3 and w[0] == "given"}
    return reachable, given


def has_token(said: str) -> bool:
    """Whether Hugging Face's client has a token there: of its environment, or of `hf auth login`."""
    return "token" in said.splitlines()


def of(facts: BoxFacts, run: Run | None) -> Network:
    """How a machine reaches what a run downloads, by its facts."""
    token = facts.has_token or bool(env.read(env.HF_TOKEN))
    return mirrors.choose(facts.reachable, token=token, given=facts.given, store=_store_host(run))


def for_this_machine(run: Run, folder: Path) -> MirrorChoice | None:
    """Take a mirror here as on a box: where the run needs the hub, nothing is set, and only a mirror responds.

    It is set for this process and those it starts. Returns the choice; None where none was made.
    """
    set_already = env.read(env.HF_ENDPOINT) or env.read(env.NETWORK)
    offline = env.read(env.HF_HUB_OFFLINE, "0").upper() in ("1", "ON", "YES", "TRUE")
    if set_already or offline or not _needs_hub(run, folder):
        return None
    asked = answers.ask(way.address for way in mirrors.ways() if way.serves == "hub" and not way.file)
    reachable = {address: answer.milliseconds for address, answer in asked.items() if not answer.problem}
    network = mirrors.choose(reachable, token=_has_token())
    hub = next((one for one in network.choices if one.serves == "hub" and one.key == "why.mirror.instead"), None)
    if hub is not None:
        for variable in (env.HF_ENDPOINT, env.HF_HUB_DISABLE_XET):
            env.put(variable, network.environment[variable.name])
    return hub


def _needs_hub(run: Run, folder: Path) -> bool:
    """Whether a model, as far as a glance shows, or a dataset is loaded from the hub."""
    if any(source.path.startswith("hub:") for source in inputs.train_sources(run)):
        return True
    named = [one for one in (run.model, run.train.teacher) if isinstance(one, str)]
    remote = [one for one in named if not one.startswith(inputs.EARLIER_RUN) and not (folder / one).exists()]
    return any(model_configs.here(one, folder) is None for one in remote)


def _has_token() -> bool:
    """Whether Hugging Face's client would send a token: of the environment, or of its own login."""
    if any(env.read(one) for one in (env.HF_TOKEN, env.HUGGING_FACE_HUB_TOKEN, env.HF_OIDC_RESOURCE)):
        return True
    login = Path(env.read(env.HF_TOKEN_PATH, str(model_configs.hub_home() / "token"))).expanduser()
    return Path(os.path.expandvars(login)).is_file()


def inherited() -> Network:
    """The choice of the machine that started this one, with its variables as they are set here."""
    network = mirrors.from_text(env.read(env.NETWORK))
    names = {one.name for one in network.choices}
    leads = {name for way in mirrors.ways() if way.name in names for name in way.environment}
    leads |= {one.fields["variable"] for one in network.choices if one.key == mirrors.OVER_GIVEN}
    here = env.child_environment({})
    return network.model_copy(update={"environment": {name: here[name] for name in sorted(leads & here.keys())}})


def _store_host(run: Run | None) -> str:
    """Host of the store, which is reached without a proxy."""
    endpoint = env.read(env.AWS_ENDPOINT_URL)
    if run is None or not run.save.store:
        return ""
    try:
        found = address.parse(run.save.store, Path())
    except StokerError:
        return ""
    if found.kind == "s3":
        return endpoint.partition("://")[2].partition("/")[0].partition(":")[0]
    return found.host if found.kind == "ssh" else ""
