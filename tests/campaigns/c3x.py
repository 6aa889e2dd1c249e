"""C3x: every optimizer, schedule and option of the adapter that a run file or its `native` block accepts.

Names are the engines' own (the run file's type, transformers' enumerations and signatures, PEFT's `LoraConfig`), so an
upgrade that adds one fails the campaign until it is decided. Each is trained, taken up from a checkpoint in a new
folder and must end with the same bits, or is refused when the run file is read. `--n` counts resumes, one of each
case in turn; the report has their number. Controls: states cast as torch casts them; a refused adapter
that is trained all the same.

Not run here: what needs a GPU (paging, Liger's kernels), other packages, or a model with its own kinds of layers.
"""

import inspect
import itertools
import json
import shutil
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import c3
import peft
import tiny_run
import torch
import trainings
from campaign import Campaign
from transformers import LlamaConfig, LlamaForCausalLM, SchedulerType
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.training_args import OptimizerNames

from stoker.config import load, native
from stoker.config.optimizer_names import OptimizerName
from stoker.config.run import Train
from stoker.errors import StokerErrors
from stoker.plan import optimizers
from stoker.rundir import files
from stoker.rundir.layout import RunDir

STEPS = 8
OPTIMIZERS = [name for name in typing.get_args(OptimizerName) if name not in optimizers.REFUSED]
SCHEDULES = typing.get_args(Train.model_fields["schedule"].annotation)
INITS = [
    value.replace("[number of iters]", "4")
    for one in typing.get_args(typing.get_type_hints(peft.LoraConfig)["init_lora_weights"])
    for value in typing.get_args(one)
]
SCHEDULE_VALUES: dict[str, Any] = {"num_cycles": 1.5, "timescale": 3}
TRAINER: dict[str, Any] = {
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-6,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "optim_args": "momentum=0.5",
    "optim_target_modules": "all-linear",
    "tf32": False,
}
"""The Trainer's options that touch numbers, as far as they run here."""
TRAINER_ELSEWHERE = {
    *("lr_scheduler_kwargs",),  # with each schedule
    *("use_liger_kernel", "liger_kernel_config"),  # a GPU
    *("torch_compile_backend", "torch_compile_mode"),  # never called EXACT
    *("gradient_checkpointing_kwargs", "dataloader_prefetch_factor", "debug", "log_level", "logging_first_step"),
    *("logging_steps", "project", "report_to", "skip_memory_metrics"),
}
LORA: dict[str, list[dict[str, Any]]] = {
    "alora_invocation_tokens": [{"alora_invocation_tokens": [5]}],
    "alpha_pattern": [{"alpha_pattern": {"q_proj": 3}}],
    "bias": [{"bias": "all"}, {"bias": "lora_only"}],
    "ensure_weight_tying": [{"ensure_weight_tying": True}],
    "exclude_modules": [{"exclude_modules": ["k_proj"]}],
    "fan_in_fan_out": [{"fan_in_fan_out": True}],
    "init_lora_weights": [{"init_lora_weights": one} for one in (False, *INITS)],
    "kasa_config": [{"kasa_config": {}}],
    "layer_replication": [{"layer_replication": [[0, 2], [0, 2]]}],
    "layers_to_transform": [{"layers_to_transform": [1]}],
    "layers_pattern": [{"layers_to_transform": [1], "layers_pattern": "layers"}],
    "lora_bias": [{"lora_bias": True}],
    "modules_to_save": [{"modules_to_save": ["lm_head"]}, {"modules_to_save": ["embed_tokens", "lm_head"]}],
    "rank_pattern": [{"rank_pattern": {"q_proj": 2}}],
    "trainable_token_indices": [{"trainable_token_indices": [3, 4]}],
    "use_bdlora": [{"use_bdlora": {"target_modules_bd_a": ["q_proj"], "nblocks": 2, "match_strict": False}}],
    "use_dora": [{"use_dora": True}],
    "use_rslora": [{"use_rslora": True}],
}
"""What to write for each option of the adapter."""
LORA_ELSEWHERE = {
    *("auto_mapping", "peft_version", "revision"),  # notes
    *("target_parameters",),  # experts that are no layers
}
TARGETED = ("layers_to_transform", "layers_pattern")
"""Options that want their layers named."""


@dataclass(frozen=True)
class Case:
    """One run: what is set beside the usual."""

    label: str
    method: str = "lora"
    train: str = ""
    precision: str = "fp32"
    native: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The run file without its model."""
        lora = self.native.get("lora", {})
        targets = ", targets: [q_proj, v_proj]" if any(name in lora for name in TARGETED) else ""
        rank = 64 if "8bit" in self.train else 4  # smaller states stay in 32 bits
        adapter = "" if self.method == "full" else f", rank: {rank}, dropout: 0.1{targets}"
        sections = {
            "data": "{train: rows.jsonl, length: 64, pack: true}",
            "tune": f"{{method: {self.method}{adapter}}}",
            "train": f"{{batch: 8, steps: {STEPS}, learning_rate: 1e-3, warmup: 2, eval_every: never{self.train}}}",
            "save": "{every: 1 steps, keep: 99}",
            "where": f"{{micro: 4, precision: {self.precision}}}",
            "native": json.dumps({**self.native, "trainer": {"report_to": [], **self.native.get("trainer", {})}}),
        }
        return "\n".join(f"{key}: {value}" for key, value in sections.items())


CAST = Case("adafactor, bf16", "full", ", optimizer: adafactor", "bf16")
"""Of weights in bf16, which no run file asks for, it has states of another type."""


def cases() -> list[Case]:
    """Everything that is accepted, the one that was broken first."""
    by_kind = [list(_optimizers()), list(_schedules()), list(_adapters()), list(_trainer())]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_kind))
    return [CAST, *(case for case in turns if case is not None)]


def _optimizers() -> Iterator[Case]:
    for name in OPTIMIZERS:
        word = f", optimizer: {name}"
        yield Case(f"{name}, full", "full", word)
        yield Case(f"{name}, qlora in bf16", "qlora", word, "bf16")
        yield Case(f"{name}, whole head", "lora", word, "bf16", {"lora": {"modules_to_save": ["lm_head"]}})


def _schedules() -> Iterator[Case]:
    for name in SCHEDULES:
        word = f", schedule: {name}"
        yield Case(name, train=word)
        for option in _schedule_options(name):
            kwargs = {"lr_scheduler_kwargs": {option: SCHEDULE_VALUES[option]}}
            yield Case(f"{name} {option}", train=word, native={"trainer": kwargs})


def _schedule_options(name: str) -> list[str]:
    ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    return sorted(set(inspect.signature(TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(name)]).parameters) - ours)


def _adapters() -> Iterator[Case]:
    for options in itertools.chain.from_iterable(LORA.values()):
        label = ", ".join(f"{name}: {value}" for name, value in options.items())
        if not _refused("lora", options):
            yield Case(label, native={"lora": options})
    for options in ({"use_dora": True}, {"modules_to_save": ["lm_head"]}):
        yield Case(f"qlora {options}", "qlora", precision="bf16", native={"lora": options})


def _trainer() -> Iterator[Case]:
    for name, value in TRAINER.items():
        yield Case(f"{name}: {value}", native={"trainer": {name: value}})


def run(campaign: Campaign) -> None:
    _read(campaign)
    base = _base(campaign.folder / "base")
    deck = cases()
    campaign.measured["cases in all"] = len(deck)
    for number in range(campaign.n):
        if campaign.hopeless:
            break
        _one(campaign, number, deck[number % len(deck)], base)
    _controls(campaign, base)


def _base(folder: Path) -> Path:
    """A random llama with biases, which some adapters train."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    counts = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=tiny_run.VOCAB, attention_bias=True, tie_word_embeddings=False, **sizes, **counts)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _read(campaign: Campaign) -> None:
    """Every name of the engines is trained here or refused by name, and nothing is left undecided."""
    tables = {"trainer": {*TRAINER, *TRAINER_ELSEWHERE}, "lora": {*LORA, *LORA_ELSEWHERE}}
    for block, decided in tables.items():
        free = set(native.known_options()[block]) - set(native.OWNED[block])
        if free != decided:
            campaign.fail([block], f"undecided: {sorted(free ^ decided)}")
    undecided = {one.value for one in OptimizerNames} - {*OPTIMIZERS} - optimizers.REFUSED.keys()
    if undecided:
        campaign.fail(["optimizer"], f"undecided: {sorted(undecided)}")
    _must_refuse_others(campaign, "lr_scheduler_type", "schedule", {one.value for one in SchedulerType} - {*SCHEDULES})
    for name, owner in native.OWNED["lora"].items():
        if owner in (native.UNPREPARED, native.UNSAVED):
            _must_refuse(campaign, "lora", {name: {}})
    for value in native.REFUSED_VALUES["lora", "init_lora_weights"]:
        _must_refuse(campaign, "lora", {"init_lora_weights": value})


def _must_refuse_others(campaign: Campaign, option: str, word: str, values: set[str]) -> None:
    """Names of the engine that are not in the grid, under its own option and under ours."""
    for value in sorted(values):
        _must_refuse(campaign, "trainer", {option: value})
        codes = _codes(f"model: m\ndata: {{train: a}}\ntune: {{method: lora}}\ntrain: {{{word}: {value}}}\n")
        if not codes:
            campaign.fail([word, value], "accepted, and not in the grid")
        campaign.counts.update(f"refused when read: {code}" for code in codes)


def _must_refuse(campaign: Campaign, block: str, options: dict[str, Any]) -> None:
    codes = _refused(block, options)
    if not codes:
        campaign.fail([block, options], "neither trained here nor refused")
    campaign.counts.update(f"refused when read: {code}" for code in codes)


def _refused(block: str, options: dict[str, Any]) -> list[str]:
    text = f"model: m\ndata: {{train: a}}\ntune: {{method: lora}}\nnative: {json.dumps({block: options})}\n"
    return _codes(text)


def _codes(text: str) -> list[str]:
    try:
        load.parse(text, "run.yaml")
    except StokerErrors as several:
        return [error.code for error in several.errors]
    return []


def _one(campaign: Campaign, number: int, case: Case, base: Path) -> None:
    template = trainings.make(campaign.folder / "run", f"model: {base}\n{case.words}", rows=c3.ROWS[True])
    attempt = trainings.start(template)
    if attempt.wait() != 0:
        campaign.fail([number, case.label], f"did not train: {attempt.codes} {trainings.log_of(template)}")
    else:
        step = campaign.random(number).randrange(1, STEPS)
        if wrong := c3._resume(campaign, template, step, trainings.outcome(template)):
            campaign.fail([number, step, case.label], wrong)
    campaign.case("resumes", case.label)
    shutil.rmtree(campaign.folder / "run", ignore_errors=True)


def _controls(campaign: Campaign, base: Path) -> None:
    _control(campaign, base, "states are cast as torch casts them", CAST, change=_cast, prepare=_in_bf16)
    _control(campaign, base, "an adapter with state of its own is trained", Case("plain"), prepare=_with_own_state)


def _control(
    campaign: Campaign,
    base: Path,
    name: str,
    case: Case,
    change: Callable[[], None] | None = None,
    prepare: Callable[[RunDir], None] | None = None,
) -> None:
    template = trainings.make(campaign.folder / "control", f"model: {base}\n{case.words}", rows=c3.ROWS[True])
    if prepare:
        prepare(template)
    assert trainings.start(template).wait() == 0, trainings.log_of(template)
    wrong = c3._resume(campaign, template, STEPS // 2, trainings.outcome(template), change)
    campaign.control(name, caught="differ" in wrong, what=wrong)
    shutil.rmtree(campaign.folder / "control")


def _cast() -> None:
    from stoker.engine import checkpoint

    def put(self: checkpoint.TrainingState, groups: list[dict[str, Any]], states: checkpoint.States) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        by_position = {number: states[one] for number, one in enumerate(parameters) if one in states}
        self.optimizer.load_state_dict({"state": by_position, "param_groups": groups})

    checkpoint.TrainingState.put = put  # type: ignore[method-assign]
    checkpoint._require_loaded = lambda *_: None


def _in_bf16(run_dir: RunDir) -> None:
    plan = files.read_json(run_dir.plan_file)
    plan["native"]["model"]["dtype"] = "bfloat16"
    files.write_json(run_dir.plan_file, plan)


def _with_own_state(run_dir: RunDir) -> None:
    plan = files.read_json(run_dir.plan_file)
    plan["native"]["lora"]["monteclora_config"] = {"buffer_size": 20}
    files.write_json(run_dir.plan_file, plan)
