"""Pydantic's findings in our words: one error per mistake, with its line, its cause and what to write instead.

Knows the run file's keys and the names other tools give them; knows nothing of files or overrides.
"""

import copy
import difflib
import functools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stoker import env, messages
from stoker.config import native, reader, rewards, syntax
from stoker.config.reader import Document, KeyPath, dotted_path
from stoker.config.run import Lora, Run
from stoker.errors import ClosestNames, StokerError, closest

SECRET = env.SECRET

_TAGS = {"text", "mapping", "list", "number", "auto", "value", "full", "lora", "qlora", *native.step_options()}
"""Names pydantic puts into a path for a union's member; they are not keys of the file."""

_TYPE_WORDS = {
    "int": "whole",
    "float": "number",
    "finite": "number",
    "string": "text",
    "bool": "bool",
    "list": "list",
    "dict": "mapping",
    "model": "mapping",
}

_SIGNS = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}

_OWN_LANGUAGE = {
    "data.eval": "`2%`, `data/eval.jsonl`",
    "tune.targets": "`all-linear`, `[q_proj, v_proj]`",
    "train.warmup": "`3%`, `100`",
    "train.exact": "`auto`, `true`, `false`",
    "train.eval_every": "`epoch`, `200 steps`, `never`",
    "save.every": "`10m`, `500 steps`, `epoch`, `auto`",
    "save.bandwidth": "`20 MB/s`",
    "where.gpus": "`all`, `2`, `0,2`",
    "where.micro": "`auto`, `4`",
    "where.gradient_checkpointing": "`auto`, `true`, `false`, `offload`",
    "where.workers": "`auto`, `2`",
    "where.price": "`2.5 CNY/h`",
    "where.session": "`8h`",
    "budget.money": "`50 CNY`",
    "budget.time": "`12h`",
    "name": "`my-run_1`",
}
"""Words whose values have more than one kind, or a small language of their own, with examples of them."""

_COLUMNS = {
    "": "`{prompt: question_text, answer: reply}`, `{text: body}`, `{messages: dialogue}`",
    ".text": "`body`",
    ".prompt": "`question_text`",
    ".input": "`details`",
    ".answer": "`reply`",
    ".chosen": "`good`",
    ".rejected": "`bad`",
    ".completion": "`reply`",
    ".label": "`liked`",
    ".history": "`earlier`",
    ".system": "`system_prompt`",
    ".messages": "`dialogue`",
    ".tools": "`functions`",
    ".role": "`speaker`",
    ".content": "`says`",
    ".roles": "`{user: customer, assistant: agent}`",
    ".roles.user": "`customer`",
    ".roles.assistant": "`agent`",
    ".roles.system": "`setting`",
    ".roles.function_call": "`call`",
    ".roles.tool": "`result`",
}
_EXAMPLES = {
    **_OWN_LANGUAGE,
    "model": "`Qwen/Qwen2.5-7B`, `{shape: llama, layers: 6, width: 512, heads: 8}`",
    "model.shape": "`model: Qwen/Qwen2.5-7B`, `model: {shape: llama, layers: 6, width: 512, heads: 8}`",
    "train.spike": "`3`",
    "train.dpo": "`{beta: 0.1}`",
    "train.simpo": "`{beta: 2.0, gamma: 1.0}`",
    "train.orpo": "`{beta: 0.1}`",
    "train.kto": "`{beta: 0.1}`",
    "train.grpo": "`{group: 8, rewards: [{exact: {column: answer}}]}`",
    "train.distill": "`{teacher: Qwen/Qwen2.5-1.5B-Instruct}`",
    "train.distill.teacher": "`Qwen/Qwen2.5-1.5B-Instruct`",
    **{f"train.grpo.rewards{key}": text for key, text in rewards.EXAMPLES.items()},
    "model.layers": "`6`",
    "model.width": "`512`",
    "model.heads": "`8`",
    "model.kv_heads": "`8`",
    "model.ffn": "`1536`",
    "model.vocab": "`32000`",
    "tokenizer": "`auto`, `{train: bpe, vocab: 32000}`",
    "tokenizer.train": "`bpe`",
    "tokenizer.vocab": "`32000`",
    "data": "`{train: data/train.jsonl}`",
    "data.train": "`data/train.jsonl`, `hub:owner/name`, `[{path: a.jsonl, weight: 2}, {path: b.jsonl}]`",
    "data.set": "`s3://bucket/wiki`, `run:my-run`, `[{path: 'run:wiki', share: 60%}, {path: 'run:code', share: 40%}]`",
    "data.set[]": "`{path: 'run:wiki', share: 60%}`",
    "data.set.path": "`s3://bucket/wiki`",
    "data.set.name": "`wiki`",
    "data.set.share": "`60%`",
    "data.set.epochs": "`2`",
    "data.train[]": "`{path: data/train.jsonl}`",
    "data.train.path": "`data/train.jsonl`",
    "data.train.config": "`en`",
    "data.train.name": "`wiki`",
    "data.train.share": "`60%`",
    "data.train.epochs": "`2`",
    **{f"{place}.columns{key}": text for place in ("data", "data.train") for key, text in _COLUMNS.items()},
    **{f"train.grpo.rewards{key}": text for key, text in rewards.EXAMPLES.items()},
    "data.stages": "`[{share: 100%, mix: {wiki: 60%, code: 40%}}]`",
    "data.stages[]": "`{share: 30%, mix: {wiki: 60%, code: 40%}}`",
    "data.stages.share": "`30%`",
    "data.stages.tokens": "`5B`",
    "data.stages.mix": "`{wiki: 60%, code: 40%}`",
    "data.pipeline": "`[{step: MinhashDedup}, {step: GopherQualityFilter, options: {min_doc_words: 20}}]`",
    "data.pipeline[]": "`{step: MinhashDedup}`",
    "data.pipeline.step": "`MinhashDedup`",
    "data.pipeline.against": "`eval/*.jsonl`",
    "data.pipeline.options": "`{language: cmn}`",
    "data.rows": "`2500`, `20k`",
    "data.tokens": "`1000000`, `5M`",
    "tune": "`{method: lora, rank: 16}`",
    "tune.method": "`lora`",
    "tune.alpha": "`32`",
    "tune.targets[]": "`q_proj`",
    "train": "`{epochs: 3, batch: 16}`",
    "train.steps": "`1000`",
    "save": "`{every: 10m, keep: 3}`",
    "save.best": "`eval_loss`",
    "save.store": "`s3://bucket/prefix`",
    "where": "`{gpus: all}`",
    "where.host": "`my-box`",
    "where.hosts": "`[box-1, box-2]`",
    "where.hosts[]": "`box-1`",
    "where.nodes": "`2`",
    "where.interface": "`eth1`",
    "budget": "`{money: 50 CNY, time: 12h}`",
    "native": "`{trainer: {neftune_noise_alpha: 5}}`",
    "native.trainer": "`{neftune_noise_alpha: 5}`",
    "native.model": "`{revision: main}`",
    "native.lora": "`{use_rslora: true}`",
    "native.quantization": "`{bnb_4bit_use_double_quant: false}`",
    "native.fsdp": "`{reshard_after_forward: false}`",
    "native.deepspeed": "`ds_config.json`",
    "native.vllm": "`{max_num_seqs: 64}`",
    "native.kaggle": "`{machine_shape: NvidiaTeslaP100}`",
    "native.slurm": "`{partition: gpu, mem: 32G}`",
    "native.datatrove": "`{workers: 8}`",
    "native.sky": "`{accelerators: 'A100:1', infra: aws}`",
}
"""How a value is written, where the default does not show it."""

_ELSEWHERE = {
    "base_model": "model",
    "model_name": "model",
    "model_name_or_path": "model",
    "finetuning_type": "tune.method",
    "quantization_bit": "tune.method",
    "load_in_4bit": "tune.method",
    "lora": "tune",
    "qlora": "tune",
    "lora_rank": "tune.rank",
    "lora_r": "tune.rank",
    "lora_target": "tune.targets",
    "target_modules": "tune.targets",
    "dataset": "data.train",
    "column_mapping": "data.columns",
    "field": "data.columns",
    "text_column": "data.columns.text",
    "datasets": "data.train",
    "dataset_dir": "data.train",
    "train_file": "data.train",
    "val_size": "data.eval",
    "val_set_size": "data.eval",
    "cutoff_len": "data.length",
    "max_length": "data.length",
    "max_seq_length": "data.length",
    "seq_length": "data.length",
    "sequence_len": "data.length",
    "packing": "data.pack",
    "sample_packing": "data.pack",
    "lr": "train.learning_rate",
    "lr_scheduler": "train.schedule",
    "num_epochs": "train.epochs",
    "max_epochs": "train.epochs",
    "batch_size": "train.batch",
    "micro_batch_size": "where.micro",
    "warmup_ratio": "train.warmup",
    "stage": "train.objective",
    "pref_beta": "train.dpo.beta",
    "num_gpus": "where.gpus",
    "num_nodes": "where.nodes",
    "nnodes": "where.nodes",
}
"""Names that other tools use for keys of the run file."""

_NEEDLESS = {
    "template": "nearest.template",
    "chat_template": "nearest.template",
    "preprocessing_num_workers": "nearest.processors",
    "dataset_num_proc": "nearest.processors",
    "dataset_processes": "nearest.processors",
    "overwrite_cache": "nearest.prepared_again",
    "overwrite_output_dir": "nearest.resumes",
}
"""Names of other tools that need no key here, and the sentence why."""


@dataclass(frozen=True)
class _Finding:
    path: KeyPath
    kind: str
    given: Any
    context: dict[str, Any]

    @property
    def key(self) -> str:
        """The path without places in lists: `data.train[]`, `data.train.path`."""
        inner = [part for part in self.path[:-1] if isinstance(part, str)]
        last = self.path[-1] if self.path else ""
        return ".".join(inner) + "[]" if isinstance(last, int) else ".".join([*inner, last])


def translate(error: ValidationError, document: Document) -> list[StokerError]:
    """All of pydantic's findings, those left out that only follow from another one."""
    findings = [_finding(details, document) for details in error.errors()]
    meant = [f"{one}." for f in findings if f.kind == "extra_forbidden" for one in _nearest(f, document)]
    findings = [f for f in findings if f.kind != "missing" or not any(m.startswith(f"{f.key}.") for m in meant)]
    if any(f.kind == "missing" and f.path == ("model", "shape") for f in findings):
        findings = [f for f in findings if f.path[0] != "model" or f.path == ("model", "shape")]
    return [_word(finding, document) for finding in findings]


def example(key: str) -> list[str]:
    """How the value of a word is written."""
    if key in _EXAMPLES:
        return re.findall(r"`[^`]*`", _EXAMPLES[key])
    parent, _, name = key.rpartition(".")
    if not _models_at(parent):
        return example(parent)  # a key that the user chose
    defaults = [model.model_fields[name].default for model in _models_at(parent) if name in model.model_fields]
    return [shown(defaults[0])]


def shown(value: Any) -> str:
    """A value as the file has it, within limits; what looks like a secret is not repeated."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if SECRET.search(text):
        return "`***`"
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"


def _finding(details: ErrorDetails, document: Document) -> _Finding:
    path = _file_path(details["loc"], document)
    kind, given, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        # Of all unions only `tune` and the steps of a pipeline have their tags in the file.
        tag = "method" if path[0] == "tune" else "step"
        path, has_tag = (*path, tag), tag in given
        kind, given = ("literal_error", given[tag]) if has_tag else ("missing", given)
        context = {"expected": context.get("expected_tags", "")}
    return _Finding(path, kind, given, context)


def _word(finding: _Finding, document: Document) -> StokerError:
    """One finding as one of our errors."""
    where, kind, given = document.where(finding.path), finding.kind, finding.given
    if kind == "extra_forbidden":
        return _unknown(finding, document)
    if kind == "missing":
        return StokerError("STK105", where, key=finding.path[-1], example=example(finding.key))
    if given is None or kind in ("too_short", "string_too_short"):
        return StokerError("STK120", where)
    if plain := _in_plain_characters(finding, document):
        return StokerError("STK155", where, given=shown(given), plain=plain)
    if finding.key == "name":
        return StokerError("STK156", where, given=shown(given), example=example("name"))
    if kind in _SIGNS:
        limit = next(iter(finding.context.values()))
        return StokerError("STK107", where, given=shown(given), limit=f"{_SIGNS[kind]} {limit:.12g}")
    if kind == "string_pattern_mismatch" or finding.key in _OWN_LANGUAGE:
        return StokerError("STK109", where, given=shown(given), example=example(finding.key))
    if kind == "literal_error":
        choices = _choices(finding.context["expected"])
        nearest = closest(str(given), [one.split("`")[1] for one in choices], 1)
        return StokerError("STK108", where, given=shown(given), choices=choices, nearest=nearest)
    return _wrong_type(finding, where)


def _in_plain_characters(finding: _Finding, document: Document) -> str:
    """What was probably typed with a Chinese input method on (`３`, `１e-4`): the same value, where it is read."""
    if not isinstance(finding.given, str) or (plain := unicodedata.normalize("NFKC", finding.given)) == finding.given:
        return ""
    *outer, last = finding.path
    values = copy.deepcopy(document.values)
    functools.reduce(lambda inner, part: inner[part], outer, values)[last] = reader.scalar(plain)
    try:
        Run.model_validate(values)
    except ValidationError as error:
        if any(_file_path(details["loc"], document) == finding.path for details in error.errors()):
            return ""
    return plain


def unparsable(where: str, given: str, example: str, parses: Callable[[str], bool]) -> StokerError:
    """The error of a flag's value; one that is only typed in full-width characters is shown as it is read."""
    plain = unicodedata.normalize("NFKC", given)
    if plain != given and parses(plain):
        return StokerError("STK155", where, given=shown(given), plain=plain)
    return StokerError("STK109", where, given=shown(given), example=example)


def _choices(expected: str) -> list[str]:
    """Pydantic's list of a literal's values with backticks; Stoker's own lists have them already."""
    quoted = re.findall(r"'([^']*)'", expected)
    return [f"`{one}`" for one in quoted] if quoted else expected.split(", ")


def _wrong_type(finding: _Finding, where: str) -> StokerError:
    word = _TYPE_WORDS[finding.kind.split("_")[0]]
    if word == "mapping" and isinstance(finding.given, str) and (sentence := syntax.mistyped(finding.given)):
        return syntax.invalid(where, sentence)
    expected = messages.text(f"type.{word}")
    return StokerError("STK106", where, given=shown(finding.given), expected=expected, example=example(finding.key))


# ---- unknown keys


def _unknown(finding: _Finding, document: Document) -> StokerError:
    where, name, parent = document.where(finding.path), str(finding.path[-1]), finding.path[:-1]
    if parent == ("tune",) and name in Lora.model_fields:
        method = document.values["tune"]["method"]
        return StokerError("STK137", where, key=f"tune.{name}", methods=["`lora`", "`qlora`"], method=method)
    if name in _NEEDLESS:
        return StokerError("STK104", where, key=name, nearest=messages.text(_NEEDLESS[name]))
    return StokerError("STK104", where, key=name, nearest=ClosestNames(_nearest(finding, document)))


def _nearest(finding: _Finding, document: Document) -> list[str]:
    """The key that was probably meant: one of this very name elsewhere, else one that is spelt alike here."""
    name, parent = str(finding.path[-1]), finding.path[:-1]
    near = difflib.get_close_matches(name.lower(), _names_at(parent, document), n=1)
    return _elsewhere(name) or [dotted_path((*parent, one)) for one in near]


def _elsewhere(name: str) -> list[str]:
    """Where a key of this very name belongs, the shortest first: a section, the owner of an option, or `native`."""
    if name in _ELSEWHERE:
        return [_ELSEWHERE[name]]
    if name in _keys_by_name():
        return sorted(_keys_by_name()[name], key=lambda key: key.count("."))
    owners = {block[name] for block in native.OWNED.values() if name in block} - native.REFUSED.keys()
    if owners:
        return sorted(owners)
    return [f"native.{block}.{name}" for block, options in native.known_options().items() if name in options]


def _file_path(location: tuple[str | int, ...], document: Document) -> KeyPath:
    """Pydantic's location without union tags: the path as the file has it."""
    path: KeyPath = ()
    value = document.values
    for part in location:
        is_key = isinstance(value, dict) and part in value
        if part in _TAGS and not is_key:
            continue
        path = (*path, part)
        value = value[part] if is_key or isinstance(part, int) else None
    return path


def _names_at(path: KeyPath, document: Document) -> list[str]:
    """The keys allowed at a place of the file."""
    models = _models_at(".".join(part for part in path if isinstance(part, str)))
    if path == ("tune",):
        method = document.values["tune"].get("method")
        models = [model for model in models if method in get_args(model.model_fields["method"].annotation)]
    return sorted({name for model in models for name in model.model_fields})


def _models_at(key: str) -> list[type[BaseModel]]:
    """The types of the sections a dotted key can be; several for a union."""
    models: list[type[BaseModel]] = [Run]
    for part in filter(None, key.split(".")):
        fields = [model.model_fields[part] for model in models if part in model.model_fields]
        models = [inner for field in fields for inner in _models(field.annotation)]
    return models


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


@functools.cache
def _keys_by_name() -> dict[str, list[str]]:
    """Every key of the run file by its last part."""
    found: dict[str, list[str]] = {}
    for key in all_keys():
        found.setdefault(key.rpartition(".")[2], []).append(key)
    return found


def all_keys(prefix: str = "") -> Iterator[str]:
    """Every key of the run file, dotted."""
    names = dict.fromkeys(name for model in _models_at(prefix) for name in model.model_fields)
    for name in names:
        key = f"{prefix}.{name}" if prefix else name
        yield key
        yield from all_keys(key)
