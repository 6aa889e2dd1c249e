"""Writes src/stoker/config/known_options.json: the option names of the tested engines, read from their source.

The installed packages are parsed, not imported, so no torch is needed and nothing of theirs runs.
Run it after an upgrade of transformers, peft or vLLM; `--check` only compares (exit 1 where they differ). vLLM has an
environment of its own; where it is not installed, its recorded names stay as they are.
"""

import ast
import gzip
import importlib.metadata
import importlib.util
import itertools
import json
import re
import sys
from pathlib import Path
from typing import get_args

from stoker import tools
from stoker.config.run import Train
from stoker.places import kaggle_cli, sky

TARGET = Path(__file__).parent.parent / "src" / "stoker" / "config" / "known_options.json"
SBATCH_MANUAL = Path("/usr/share/man/man1/sbatch.1.gz")
"""Of Debian's slurm-client."""
SBATCH_LATER = {
    *("consolidate_segments", "container_id", "extra", "mem_update", "oom_kill_step", "resources", "resv_ports"),
    *("runtime", "segment", "spread_segments", "stepmgr", "tres_bind", "tres_per_task"),
}
"""Options that came after Debian 12's Slurm 22.05, by sbatch(1) of Slurm 26.05."""
SCHEDULES = get_args(Train.model_fields["schedule"].annotation)
STEP_FILES = {
    "C4QualityFilter": "filters/c4_filters.py",
    "FineWebQualityFilter": "filters/fineweb_quality_filter.py",
    "GopherQualityFilter": "filters/gopher_quality_filter.py",
    "GopherRepetitionFilter": "filters/gopher_repetition_filter.py",
    "LanguageFilter": "filters/language_filter.py",
    "PIIFormatter": "formatters/pii.py",
    "Trafilatura": "extractors/trafilatura.py",
}
"""Where datatrove has the blocks that are a step of their own."""
NO_WORDS = {"exclusion_writer", "norm_config", "hash_config", "find_query_ngrams", "find_overlap_ngrams"}
"""Options of datatrove's blocks that are objects, or about questions and answers: all words of an eval row count."""
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


def main() -> int:
    if "--check" in sys.argv[1:] and importlib.util.find_spec("transformers") is None:
        print(f"{TARGET.name}: not compared, transformers is not installed")
        return 0
    text = json.dumps(collect(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        same = TARGET.read_text(encoding="utf-8") == text
        print(f"{TARGET.name}: " + ("up to date" if same else "differs; run tools/known_options.py"))
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8", newline="\n")
    return 0


def collect() -> dict[str, object]:
    """Everything the file holds."""
    transformers, peft = _package("transformers"), _package("peft")
    auto = transformers / "models/auto/auto_factory.py"
    modeling = transformers / "modeling_utils.py"
    model = {
        *_parameters(modeling, "PreTrainedModel", "from_pretrained"),
        *_popped(modeling, "PreTrainedModel", "from_pretrained"),
        *_popped(auto, "_BaseAutoModelClass", "from_pretrained"),
    }
    quantization = transformers / "utils/quantization_config.py"
    shared = _fields(transformers / "configuration_utils.py", "PreTrainedConfig")
    options = {
        "trainer": _fields(transformers / "training_args.py", "TrainingArguments"),
        "model": {name for name in model if not name.startswith("_")},
        "lora": _fields(peft / "tuners/lora/config.py", "LoraConfig")
        | _fields(peft / "config.py", "PeftConfig")
        | _fields(peft / "config.py", "PeftConfigMixin"),
        "quantization": _parameters(quantization, "BitsAndBytesConfig", "__init__"),
    }
    options["fsdp"] = _fsdp()
    vllm_version, options["vllm"] = _vllm()
    options["slurm"] = _sbatch()
    kaggle_version, options["kaggle"] = _kaggle()
    sky_version, options["sky"] = _sky()
    datatrove_version, options["datatrove"], steps = _datatrove()
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "peft")},
        "tools": {"vllm": vllm_version, "kaggle": kaggle_version, "sky": sky_version, "datatrove": datatrove_version},
        "options": {block: sorted(names) for block, names in options.items()},
        "shapes": {family: sorted(_family_fields(transformers, family) | shared) for family in FAMILIES},
        "steps": {name: sorted(names) for name, names in sorted(steps.items())},
        "schedules": {name: _schedule_options(transformers, name) for name in SCHEDULES},
    }


def _schedule_options(transformers: Path, name: str) -> list[str]:
    """What `lr_scheduler_kwargs` may hold for a schedule: parameters of its function that the Trainer does not set."""
    tree = _tree(transformers / "optimization.py")
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TYPE_TO_SCHEDULER_FUNCTION"
    )
    assert isinstance(table, ast.Dict)
    made_by = {ast.unparse(key): ast.unparse(value) for key, value in zip(table.keys, table.values, strict=True) if key}
    function = next(
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == made_by[f"SchedulerType.{name.upper()}"]
    )
    parameters = {argument.arg for argument in function.args.args}
    return sorted(parameters - {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"})


def _fsdp() -> set[str]:
    """Parameters of torch's `fully_shard`, and its precision policy's fields instead of the policy."""
    folder = _package("torch") / "distributed" / "fsdp" / "_fully_shard"
    tree = _tree(folder / "_fully_shard.py")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "fully_shard"]
    parameters = {argument.arg for argument in [*functions[-1].args.args, *functions[-1].args.kwonlyargs]}
    return parameters | _fields(folder / "_fsdp_api.py", "MixedPrecisionPolicy")


def _vllm() -> tuple[str, set[str]]:
    """vLLM's version and the flags of its OpenAI server, by their names in Python."""
    found = tools.package_folder(tools.VLLM)
    if found is None:
        recorded = json.loads(TARGET.read_text(encoding="utf-8"))
        return recorded["tools"]["vllm"], set(recorded["options"]["vllm"])
    server, engine = found / "entrypoints/launchers/cli_args.py", found / "engine/arg_utils.py"
    version = next(iter(found.parent.glob("vllm*.dist-info"))).name.removesuffix(".dist-info").partition("-")[2]
    return version, {
        *_fields(server, "BaseFrontendArgs"),
        *_fields(server, "FrontendArgs"),
        *_flags(server),
        *_flags(engine),
    }


def _kaggle() -> tuple[str, set[str]]:
    """The version of Kaggle's command line and the fields of `kernel-metadata.json` that `kernels push` reads."""
    found = tools.package_folder(kaggle_cli.TOOL)
    if found is None:
        recorded = json.loads(TARGET.read_text(encoding="utf-8"))
        return recorded["tools"]["kaggle"], set(recorded["options"]["kaggle"])
    push = _function(found / "api" / "kaggle_api_extended.py", "KaggleApi", "kernels_push")
    version = next(iter(found.parent.glob("kaggle-*.dist-info"))).name.removesuffix(".dist-info").partition("-")[2]
    calls = [node for node in ast.walk(push) if isinstance(node, ast.Call)]
    words = [
        argument.value
        for call in calls
        if ast.unparse(call.func) == "meta_data.get" or "meta_data" in map(ast.unparse, call.args)
        for argument in call.args[:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    return version, set(words)


def _sky() -> tuple[str, set[str]]:
    """SkyPilot's version and the keys of a task's `resources`, by its own schema."""
    found = tools.package_folder(sky.TOOL)
    if found is None:
        recorded = json.loads(TARGET.read_text(encoding="utf-8"))
        return recorded["tools"]["sky"], set(recorded["options"]["sky"])
    version = next(iter(found.parent.glob("skypilot-*.dist-info"))).name.removesuffix(".dist-info").partition("-")[2]
    functions = [node for node in _tree(found / "utils" / "schemas.py").body if isinstance(node, ast.FunctionDef)]
    wanted = [one for one in functions if one.name in ("_get_single_resources_schema", "get_resources_schema")]
    inner = [
        value
        for function in wanted
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
        for key, value in zip(node.value.keys, node.value.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "properties" and isinstance(value, ast.Dict)
    ]
    names = {str(key.value) for one in inner for key in one.keys if isinstance(key, ast.Constant)}
    return version, {name for name in names if not name.startswith("_")}


def _datatrove() -> tuple[str, set[str], dict[str, set[str]]]:
    """datatrove's version, the options of its executors, and those of each step of `data.pipeline`."""
    found = tools.package_folder(tools.DATATROVE)
    if found is None:
        recorded = json.loads(TARGET.read_text(encoding="utf-8"))
        steps = {name: set(names) for name, names in recorded["steps"].items()}
        return recorded["tools"]["datatrove"], set(recorded["options"]["datatrove"]), steps
    version = next(iter(found.parent.glob("datatrove-*.dist-info"))).name.removesuffix(".dist-info").partition("-")[2]
    executors = _parameters(found / "executor/local.py", "LocalPipelineExecutor", "__init__") | _parameters(
        found / "executor/slurm.py", "SlurmPipelineExecutor", "__init__"
    )
    blocks = found / "pipeline"
    minhash, decontamination = blocks / "dedup/minhash.py", blocks / "decont/n_grams.py"
    steps = {
        **{name: _parameters(blocks / file, name, "__init__") for name, file in STEP_FILES.items()},
        "ExactDedup": set(),
        "MinhashDedup": _fields(minhash, "MinhashConfig") | {"language"},
        "NGramsDecont": _fields(decontamination, "NGramsDecontConfig") | {"language"},
    }
    return version, executors, {name: names - NO_WORDS for name, names in steps.items()}


def _sbatch() -> set[str]:
    """sbatch's long options, by its manual page; where there is none, the recorded names stay."""
    if not SBATCH_MANUAL.is_file():
        return set(json.loads(TARGET.read_text(encoding="utf-8"))["options"]["slurm"])
    lines = gzip.decompress(SBATCH_MANUAL.read_bytes()).decode().splitlines()
    heads = [line for before, line in itertools.pairwise(lines) if before == ".TP" and line.startswith(r"\fB\-")]
    names = {name for line in heads for name in re.findall(r"\\-\\-([a-z\\-]+)\\fR", line)}
    return {name.replace("\\", "").replace("-", "_") for name in names} | SBATCH_LATER


def _flags(file: Path) -> set[str]:
    """Flags that a module adds to a parser."""
    calls = [node for node in ast.walk(_tree(file)) if isinstance(node, ast.Call)]
    words = [
        word.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    ]
    return {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _family_fields(transformers: Path, family: str) -> set[str]:
    file = transformers / f"models/{family}/configuration_{family}.py"
    name = next(
        node.name for node in _tree(file).body if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    )
    return _fields(file, name)


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _class(file: Path, name: str) -> ast.ClassDef:
    return next(node for node in _tree(file).body if isinstance(node, ast.ClassDef) and node.name == name)


def _function(file: Path, owner: str, name: str) -> ast.FunctionDef:
    return next(node for node in _class(file, owner).body if isinstance(node, ast.FunctionDef) and node.name == name)


def _fields(file: Path, name: str) -> set[str]:
    """A dataclass' own fields that can be given to its constructor."""
    found = set()
    for node in _class(file, name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            annotation = ast.unparse(node.annotation)
            default = ast.unparse(node.value) if node.value else ""
            if "ClassVar" not in annotation and "init=False" not in default and not node.target.id.startswith("_"):
                found.add(node.target.id)
    return found


def _parameters(file: Path, owner: str, name: str) -> set[str]:
    """Names in a function's signature."""
    arguments = _function(file, owner, name).args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in every} - {"self", "cls"}


def _popped(file: Path, owner: str, name: str) -> set[str]:
    """Names a function takes out of its `**kwargs`."""
    return {
        node.args[0].value
        for node in ast.walk(_function(file, owner, name))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("kwargs.pop", "kwargs.get")
        and isinstance(node.args[0], ast.Constant)
    }


if __name__ == "__main__":
    sys.exit(main())
