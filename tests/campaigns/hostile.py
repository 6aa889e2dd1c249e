"""The hostile corpus of C8: what a stranger may put under any file name we open. Payloads only touch a canary file.

Every gadget runs `touch CANARY` if anything executes it; every escape leads to a decoy outside the case's folder.
"""

import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVIL_MODULE = "stoker_evil_module"


@dataclass(frozen=True)
class Hostile:
    """One hostile file: where it is put, what is in it, and what is then done with it."""

    kind: str
    place: str
    """base, checkpoint, final, rows, prepared, run, file or store."""
    name: str
    content: Callable[[Path, Path], bytes]
    """From the canary to touch and the decoy to reach."""
    action: str

    @property
    def title(self) -> str:
        return f"{self.kind} as {self.place}/{self.name}: {self.action}"


# ---- pickles


class _Call:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._function, self._arguments


def _raw(module: str, name: str, *arguments: str) -> bytes:
    """Protocol 0 by hand: a global that cannot be imported here can still be named."""
    pushed = b"".join(b"V" + argument.encode("raw-unicode-escape") + b"\n" for argument in arguments)
    return f"c{module}\n{name}\n(".encode() + pushed + b"tR."


def _os_system(canary: Path, _: Path) -> bytes:
    import os

    return pickle.dumps(_Call(os.system, f"touch '{canary}'"))


def _subprocess(canary: Path, _: Path) -> bytes:
    import subprocess

    return pickle.dumps(_Call(subprocess.check_call, ["touch", str(canary)]))


def _eval(canary: Path, _: Path) -> bytes:
    return pickle.dumps(_Call(eval, f"open({str(canary)!r}, 'w')"))


def _exec(canary: Path, _: Path) -> bytes:
    return pickle.dumps(_Call(exec, f"open({str(canary)!r}, 'w').close()"), protocol=2)


def _posix(canary: Path, _: Path) -> bytes:
    return _raw("posix", "system", f"touch '{canary}'")


def _run_path(canary: Path, _: Path) -> bytes:
    script = canary.with_name("script.py")
    script.write_text(f"open({str(canary)!r}, 'w').close()")
    return _raw("runpy", "run_path", str(script))


def _import(canary: Path, _: Path) -> bytes:
    return _raw("importlib", "import_module", EVIL_MODULE)


def _write_bytes(canary: Path, _: Path) -> bytes:
    return pickle.dumps(_Call(Path.touch, canary))


def _torch_zip(canary: Path, decoy: Path) -> bytes:
    """What `torch.save` writes, with a gadget as its pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", _os_system(canary, decoy))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return out.getvalue()


def _torch_old(canary: Path, decoy: Path) -> bytes:
    """What old versions of torch wrote: magic number, version, system, then the object."""
    parts = [pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2), pickle.dumps(1001, protocol=2)]
    parts.append(pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, protocol=2))
    return b"".join(parts) + _os_system(canary, decoy)


def _numpy(canary: Path, decoy: Path) -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + _os_system(canary, decoy)


def _safetensors(canary: Path, decoy: Path) -> bytes:
    """A right header with a pickle behind it, and one in its metadata."""
    body = _os_system(canary, decoy)
    header = json.dumps(
        {
            "__metadata__": {"format": "pt", "__reduce__": body.hex()},
            "lm_head.weight": {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + body


PICKLES: dict[str, Callable[[Path, Path], bytes]] = {
    "os.system": _os_system,
    "subprocess": _subprocess,
    "eval": _eval,
    "exec": _exec,
    "posix.system": _posix,
    "runpy": _run_path,
    "import": _import,
    "Path.touch": _write_bytes,
    "torch zip": _torch_zip,
    "torch old": _torch_old,
    "numpy object": _numpy,
    "safetensors": _safetensors,
}

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "training_args.bin",
)
STATE_FILES = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "adapter_config.json",
    "state.safetensors",
    "state.json",
    "trainer_state.json",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "training_args.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    ".metadata",
)
DATA_FILES = ("rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.txt")
PREPARED_FILES = (
    "report.json",
    "train/shard-00000/tokens.bin",
    "train/shard-00000/segments.bin",
    "train/shard-00000/rows.bin",
    "train/shard-00000/trained.bin",
    "tokenizer/tokenizer.json",
)
RUN_FILES = ("events.jsonl", "plan.json", "process.json", "supervisor.json", "run.yaml", "manifest.json")


def _pickled() -> Iterator[Hostile]:
    places = (
        ("base", MODEL_FILES, "train"),
        ("checkpoint", STATE_FILES, "resume"),
        ("final", ("adapter_model.safetensors", "adapter_model.bin", "adapter_config.json", "tokenizer.json"), "chat"),
        ("rows", DATA_FILES, "prepare"),
        ("prepared", PREPARED_FILES, "train"),
        ("run", RUN_FILES, "look"),
        ("file", ("run.yaml",), "plan"),
    )
    for place, names, action in places:
        for name in names:
            for kind, content in PICKLES.items():
                yield Hostile(f"pickle {kind}", place, name, content, action)


# ---- YAML


YAML_TAGS = (
    "!!python/object/apply:os.system ['{touch}']",
    "!!python/object/new:os.system ['{touch}']",
    "!!python/object/apply:subprocess.check_output [['touch', '{canary}']]",
    "!!python/object/apply:builtins.eval [\"open('{canary}', 'w')\"]",
    "!!python/object/apply:builtins.exec [\"open('{canary}', 'w')\"]",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object:argparse.Namespace {{a: 1}}",
    "!!python/object/new:type {{args: ['z', !!python/tuple [], {{'extend': !!python/name:exec }}]}}",
    "!!python/object/apply:builtins.open ['{decoy}']",
    "!include {decoy}",
    "!!binary |\n  {hexed}",
    "!!timestamp x",
    "!!set {{a, b}}",
)


def _yaml(tag: str, key: str) -> Callable[[Path, Path], bytes]:
    def content(canary: Path, decoy: Path) -> bytes:
        said = tag.format(touch=f"touch {canary}", canary=canary, decoy=decoy, hexed="gASVAAAA")
        return f"model: base\ndata: {{train: rows.jsonl}}\n{key}: {said}\n".encode()

    return content


def _bomb(_: Path, __: Path) -> bytes:
    """Aliases of aliases: a billion laughs."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(lines).encode()


def _yamls() -> Iterator[Hostile]:
    for number, tag in enumerate(YAML_TAGS):
        for key in ("name", "native"):
            yield Hostile(f"yaml tag {number} at {key}", "file", "run.yaml", _yaml(tag, key), "plan")
        yield Hostile(f"yaml tag {number}", "run", "run.yaml", _yaml(tag, "name"), "look")
    yield Hostile("yaml bomb", "file", "run.yaml", _bomb, "plan")


# ---- configurations that ask for code or for other files


def _json(**value: Any) -> Callable[[Path, Path], bytes]:
    """JSON in which CANARY, DECOY and OUTSIDE stand for the case's own."""

    def content(canary: Path, decoy: Path) -> bytes:
        text = json.dumps(value)
        text = text.replace("CANARY", str(canary)).replace("DECOY", str(decoy)).replace("OUTSIDE", str(decoy.parent))
        return text.encode()

    return content


_CODE = {"AutoConfig": f"{EVIL_MODULE}.Evil", "AutoModelForCausalLM": f"{EVIL_MODULE}.Evil"}
_TOKENIZER_CODE = {"AutoTokenizer": [f"{EVIL_MODULE}.Evil", f"{EVIL_MODULE}.Evil"]}

CONFIGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("auto_map", "config.json", {"auto_map": _CODE}),
    ("auto_map of an unknown type", "config.json", {"model_type": "evil", "auto_map": _CODE}),
    ("auto_map of another repository", "config.json", {"auto_map": {"AutoConfig": f"OUTSIDE--{EVIL_MODULE}.Evil"}}),
    ("attention from a repository", "config.json", {"_attn_implementation_internal": "OUTSIDE/kernel"}),
    ("attention by name", "config.json", {"_attn_implementation": "attacker/kernel:evil"}),
    ("experts by name", "config.json", {"_experts_implementation_internal": "attacker/kernel:evil"}),
    ("architecture", "config.json", {"architectures": ["__import__('os').system('touch CANARY')"]}),
    ("dtype", "config.json", {"dtype": "os.system('touch CANARY')"}),
    ("quantization", "config.json", {"quantization_config": {"quant_method": EVIL_MODULE, "modules": ["os"]}}),
    ("custom pipelines", "config.json", {"custom_pipelines": {"x": {"impl": f"{EVIL_MODULE}.Evil"}}}),
    ("name_or_path", "config.json", {"_name_or_path": "OUTSIDE"}),
    ("hydra target", "config.json", {"_target_": "os.system", "_args_": ["touch CANARY"]}),
    ("auto_map", "tokenizer_config.json", {"auto_map": _TOKENIZER_CODE}),
    ("class", "tokenizer_config.json", {"tokenizer_class": f"{EVIL_MODULE}.Evil"}),
    ("vocab_file", "tokenizer_config.json", {"vocab_file": "DECOY"}),
    ("merges_file", "tokenizer_config.json", {"merges_file": "../../../outside/decoy"}),
    ("tokenizer_file", "tokenizer_config.json", {"tokenizer_file": "DECOY"}),
    ("added_tokens_file", "tokenizer_config.json", {"added_tokens_file": "DECOY"}),
    ("special_tokens_map_file", "tokenizer_config.json", {"special_tokens_map_file": "DECOY"}),
    ("name_or_path", "tokenizer_config.json", {"name_or_path": "OUTSIDE"}),
    (
        "index leads out",
        "model.safetensors.index.json",
        {"metadata": {}, "weight_map": {"lm_head.weight": "../outside/decoy"}},
    ),
    ("index is absolute", "model.safetensors.index.json", {"metadata": {}, "weight_map": {"lm_head.weight": "DECOY"}}),
    ("index of pickles", "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": {"lm_head.weight": "DECOY"}}),
    ("custom_generate", "generation_config.json", {"custom_generate": "OUTSIDE"}),
)

ADAPTERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("auto_mapping", {"auto_mapping": {"parent_library": EVIL_MODULE, "base_model_class": "Evil"}}),
    ("megatron", {"megatron_config": {"a": 1}, "megatron_core": EVIL_MODULE}),
    ("base elsewhere", {"base_model_name_or_path": "OUTSIDE"}),
    ("unknown kind", {"peft_type": "EVIL"}),
    ("revision", {"revision": "$(touch CANARY)"}),
    ("targets", {"target_modules": "(a+)+$"}),
    ("loftq", {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}),
    ("pissa", {"init_lora_weights": f"{EVIL_MODULE}"}),
)

TEMPLATES = (
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ self.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
    "{% for c in [].__class__.__base__.__subclasses__() %}{{ c.__init__.__globals__ }}{% endfor %}",
    "{{ request|attr('application')|attr('__globals__') }}",
    "{{ raise_exception.__globals__['os'].system('touch CANARY') }}",
    "{{ namespace.__init__.__globals__.__builtins__.__import__('os').system('touch CANARY') }}",
    "{% set x = messages.__class__.__init__.__globals__ %}{{ x }}",
    "{% include 'DECOY' %}",
    "{% import 'DECOY' as x %}",
    "{% extends 'DECOY' %}",
    "{{ strftime_now.__globals__['os'].system('touch CANARY') }}",
    "{{ '%s'.format.__self__ }}{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "{{ messages|map(attribute='__class__.__mro__')|list }}",
    "{{ (messages|string|attr('format_map'))({'a': 1}) }}",
)


def _configured() -> Iterator[Hostile]:
    for kind, name, value in CONFIGS:
        yield Hostile(f"config {kind}", "base", name, _json(**value), "train")
        if name.startswith("tokenizer"):
            yield Hostile(f"config {kind}", "base", name, _json(**value), "prepare")
            yield Hostile(f"config {kind}", "final", name, _json(**value), "chat")
    for kind, value in ADAPTERS:
        for place, action in (("checkpoint", "resume"), ("final", "chat"), ("final", "merge")):
            yield Hostile(f"adapter {kind}", place, "adapter_config.json", _json(**value), action)
    for number, template in enumerate(TEMPLATES):
        for place, action in (("base", "prepare"), ("final", "chat")):
            value = _json(chat_template=template)
            yield Hostile(f"template {number}", place, "tokenizer_config.json", value, action)


# ---- plans, records and stores


def _records() -> Iterator[Hostile]:
    for name in ("DECOY", "../../../../outside/decoy", "a/../../../../../outside/decoy", "..\\outside\\decoy", "C:\\x"):
        yield Hostile(f"record names {name}", "checkpoint", "COMMIT.json", _json(outside=name), "resume")
        yield Hostile(f"record names {name}", "checkpoint", "COMMIT.json", _json(outside=name), "finish")
        yield Hostile(f"record names {name}", "store", "COMMIT.json", _json(outside=name), "pull")
    plans: tuple[tuple[str, dict[str, Any]], ...] = (
        ("remote code", {"native.model.trust_remote_code": True}),
        ("program", {"argv": ["-c", "open('CANARY', 'w')"]}),
        ("environment", {"env.PYTHONSTARTUP": "CANARY", "env.LD_PRELOAD": "DECOY"}),
        ("dtype", {"native.model.dtype": "os"}),
        ("cache", {"native.model.cache_dir": "OUTSIDE"}),
        ("gguf", {"native.model.gguf_file": "DECOY"}),
    )
    for kind, value in plans:
        for action in ("chat", "look", "train", "merge"):
            yield Hostile(f"plan {kind}", "run", "plan.json", _json(**value), action)
    for pid in (1, 0, -1, "1", [1], 2**70):
        for name in ("process.json", "supervisor.json"):
            yield Hostile(f"process {pid}", "run", name, _json(pid=pid), "stop")
    for kind in ("rows.tar.gz", "rows.zip", "rows.jsonl.gz", "rows.tar"):
        yield Hostile(f"archive {kind}", "rows", kind, ARCHIVES[kind], "prepare")
    for number, line in enumerate(EVENTS):
        yield Hostile(f"event {number}", "run", "events.jsonl", _json_line(line), "look")


def _json_line(line: str) -> Callable[[Path, Path], bytes]:
    return lambda canary, decoy: (line.replace("CANARY", str(canary)).replace("DECOY", str(decoy)) + "\n").encode()


EVENTS = (
    '{"event": "error", "program": "train", "error": {"code": "STK413", "where": "", "fields": '
    '{"model": "{0.__class__.__init__.__globals__}", "reason": "x"}}}',
    '{"event": "error", "program": "train", "error": {"code": "__import__", "where": "", "fields": {}}}',
    '{"event": "passed_over", "step": "__import__(\'os\').system(\'touch CANARY\')"}',
    '{"event": "step", "step": 1, "loss": "$(touch CANARY)", "seconds": 1, "tokens": 1, "epoch": 0, "at": "x"}',
)


def _tar(compressed: str) -> Callable[[Path, Path], bytes]:
    def content(canary: Path, decoy: Path) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=f"w:{compressed}") as archive:
            for name in ("../../outside/written", str(decoy.with_name("written"))):
                member = tarfile.TarInfo(name)
                member.size = 2
                archive.addfile(member, io.BytesIO(b"{}"))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(decoy)
            archive.addfile(link)
        return out.getvalue()

    return content


def _zip(canary: Path, decoy: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../outside/written", "{}")
    return out.getvalue()


def _gzip(canary: Path, decoy: Path) -> bytes:
    import gzip

    return gzip.compress(_os_system(canary, decoy))


ARCHIVES = {"rows.tar.gz": _tar("gz"), "rows.tar": _tar(""), "rows.zip": _zip, "rows.jsonl.gz": _gzip}


def corpus() -> list[Hostile]:
    """All of it, in one order."""
    return [*_pickled(), *_yamls(), *_configured(), *_records()]
