"""Files of LLaMA-Factory and axolotl, written after their documentation, and what a run file must say of each.

The expected values are argued by hand: theirs where they state one, else their documented default.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stoker import messages
from stoker.config import dataset_info, load, mixing, reader
from stoker.config.columns import Columns
from stoker.errors import StokerError
from stoker.migrate import axolotl, dialects, llamafactory, run_file

EXAMPLES = Path(__file__).parent / "examples"

Values = dict[str, Any]
Outcomes = dict[str, str]

LF_DEFAULTS: Values = {
    # Their argument classes: LoRA of rank 8, alpha twice that, on all linear layers; no packing; length 2048.
    "tune.method": "lora",
    "tune.rank": 8,
    "tune.alpha": 16,
    "tune.targets": "all-linear",
    "data.length": 2048,
    "data.pack": False,
    # transformers' TrainingArguments: 8 per device, 3 epochs, 5e-5, linear, no warm-up.
    "train.batch": 8,
    "train.epochs": 3,
    "train.learning_rate": 5e-5,
    "train.schedule": "linear",
    "train.warmup": 0,
}
AX_DEFAULTS: Values = {
    # Their schema: every weight, length 512, 1 epoch, cosine; the warm-up of their builder.
    "tune.method": "full",
    "data.length": 512,
    "data.pack": False,
    "train.epochs": 1,
    "train.schedule": "cosine",
    "train.warmup": "3%",
    "train.optimizer": "adamw",
}

RIGHT: dict[str, tuple[Values, Outcomes]] = {
    "lf_lora_sft": (
        {
            **LF_DEFAULTS,
            "train.learning_rate": 1e-4,
            "train.schedule": "cosine",
            "train.warmup": "10%",
            "save.every": "500 steps",
            "native.trainer.logging_steps": 10,
        },
        {"bf16": "decided", "template": "left", "output_dir": "own", "ddp_timeout": "decided", "do_train": "own"},
    ),
    "lf_silent": ({**LF_DEFAULTS, "train.objective": "sft"}, {"do_train": "own"}),
    "lf_full_deepspeed": (
        {"tune.method": "full", "data.length": 4096, "train.batch": 2, "train.epochs": 3, "train.warmup": "10%"},
        {"deepspeed": "decided"},
    ),
    "lf_qlora": (
        {
            "tune.method": "qlora",
            "tune.rank": 64,
            "tune.alpha": 16,
            "tune.dropout": 0.05,
            "tune.targets": ["q_proj", "v_proj"],
            "train.optimizer": "paged_adamw_8bit",
            "train.learning_rate": 2e-4,
            "native.quantization.bnb_4bit_use_double_quant": False,
        },
        {"quantization_bit": "carried", "quantization_method": "equal"},
    ),
    "lf_eight_bits": ({**LF_DEFAULTS}, {"quantization_bit": "left"}),
    "lf_pretrain": (
        {
            "train.objective": "pretrain",
            "tune.method": "full",
            "data.pack": True,
            "data.length": 1024,
            "train.steps": 1000,
            "train.batch": 4,
            "train.warmup": 50,
            "train.weight_decay": 0.1,
        },
        {"packing": "left", "stage": "carried"},
    ),
    "lf_neat_packing": (
        {
            **LF_DEFAULTS,
            "data.pack": True,
            "train.clip": 0.5,
            "train.seed": 7,
            "native.trainer.neftune_noise_alpha": 5,
            "native.trainer.adam_beta2": 0.95,
            "native.lora.use_rslora": True,
        },
        {"packing": "carried", "neat_packing": "carried"},
    ),
    "lf_dpo": (
        {**LF_DEFAULTS, "train.objective": "dpo", "train.dpo.beta": 0.2, "data.pack": False},
        {"pref_loss": "carried", "pref_beta": "carried", "packing": "own", "pref_ftx": "left", "ref_model": "left"},
    ),
    "lf_simpo": (
        {**LF_DEFAULTS, "train.objective": "simpo", "train.simpo.beta": 2.5, "train.simpo.gamma": 0.5},
        {"pref_loss": "carried", "pref_beta": "carried", "stage": "carried"},
    ),
    "lf_orpo": ({**LF_DEFAULTS, "train.objective": "orpo", "train.orpo.beta": 0.1}, {"simpo_gamma": "own"}),
    "lf_kto": (
        {
            **LF_DEFAULTS,
            "train.objective": "kto",
            "train.kto.beta": 0.1,
            "train.kto.desirable_weight": 1.2,
            "train.kto.undesirable_weight": 1.0,
        },
        {"kto_chosen_weight": "carried"},
    ),
    "lf_reward": ({"train.objective": "reward", "tune.method": "full", "data.pack": False}, {"pref_beta": "own"}),
    "lf_packing": ({**LF_DEFAULTS, "data.pack": True}, {"packing": "left"}),
    "lf_eval_split": (
        {
            "name": "first-try",
            "data.eval": "5%",
            "train.eval_every": "200 steps",
            "save.every": "200 steps",
            "save.keep": 2,  # two at least
            "save.best": "eval_loss",
            "native.trainer.report_to": ["wandb"],
        },
        {"per_device_eval_batch_size": "decided"},
    ),
    "lf_dataset_info": (
        {
            "data.train": [
                {"path": "lf_data/dataset_info.json#pairs"},
                {"path": "hub:owner/chats", "config": "zh", "split": "train_sft"},
                {"path": "lf_data/dataset_info.json#renamed"},
            ],
            "data.eval": "lf_data/dataset_info.json#held_out",
            "train.eval_every": "never",
        },
        {"dataset": "carried", "eval_dataset": "carried", "dataset_dir": "carried"},
    ),
    "lf_online": (
        {**LF_DEFAULTS, "data.train": "hub:llamafactory/alpaca_en", "where.precision": "fp16"},
        {"fp16": "carried"},
    ),
    "lf_unknown_keys": (
        {**LF_DEFAULTS, "native.trainer.log_level": "info"},
        {
            "lora_rnak": "unknown",
            "cutof_len": "unknown",
            "dataloader_num_workers": "decided",
            "torch_compile": "decided",
            "full_determinism": "left",
            "push_to_hub": "equal",
            "hf_hub_token": "left",
        },
    ),
    "lf_differences": (
        {"train.epochs": 3, "train.schedule": "cosine", "train.optimizer": "adamw"},
        {
            **dict.fromkeys(("adapter_name_or_path", "trust_remote_code", "loraplus_lr_ratio", "pissa_init"), "left"),
            **dict.fromkeys(("train_on_prompt", "max_samples", "val_size", "num_train_epochs", "optim"), "left"),
            "lr_scheduler_type": "left",
            "mask_history": "equal",
            "use_galore": "equal",
            "galore_rank": "own",
        },
    ),
    "ax_lora": (
        {
            "data.train": {"path": "hub:mlabonne/FineTome-100k", "columns": {"messages": "conversations"}},
            "data.eval": "10%",
            "data.length": 2048,
            "data.pack": True,
            "tune.method": "lora",
            "tune.rank": 16,
            "tune.alpha": 32,
            "tune.dropout": 0.05,
            "train.batch": 4,
            "train.epochs": 1,
            "train.warmup": "10%",
            "train.optimizer": "adamw_8bit",
            "train.eval_every": "epoch",
            "native.trainer.logging_steps": 1,
        },
        {
            "bf16": "decided",
            "flash_attention": "decided",
            "gradient_checkpointing": "decided",
            "special_tokens": "left",
            "datasets[0].field_messages": "carried",
            "evals_per_epoch": "own",
        },
    ),
    "ax_silent": ({**AX_DEFAULTS, "train.batch": 4, "train.learning_rate": 1e-5}, {"datasets": "carried"}),
    "ax_qlora_fsdp": (
        {
            "tune.method": "qlora",
            "tune.rank": 32,
            "tune.alpha": 16,
            "tune.targets": "all-linear",
            "train.batch": 16,
            "train.epochs": 4,
            "native.quantization.bnb_4bit_quant_type": "fp4",
        },
        {"fsdp": "decided", "load_in_8bit": "equal", "datasets[0].type": "left", "val_set_size": "equal"},
    ),
    "ax_full": (
        {
            **AX_DEFAULTS,
            "data.length": 4096,
            "data.pack": True,
            "train.steps": 500,
            "train.batch": 8,
            "train.schedule": "constant_with_warmup",
            "train.warmup": 20,
            "train.clip": 0.3,
            "train.seed": 11,
            "native.trainer.report_to": ["wandb"],
        },
        {"deepspeed": "decided", "optimizer": "equal", "wandb_project": "own"},
    ),
    "ax_eight_bits": (
        {
            "tune.method": "lora",
            "tune.targets": ["q_proj", "v_proj"],
            "train.batch": 8,  # 8 // 2 accumulated micro batches of 2
            "data.eval": "2%",
            "native.trainer.neftune_noise_alpha": 5,
        },
        {"load_in_8bit": "left", "lora_target_modules": "left", "train_on_inputs": "equal"},
    ),
    "ax_dpo": (
        {"train.objective": "dpo", "train.dpo.beta": 0.3, "data.pack": False},
        {"rl": "carried", "rl_beta": "carried", "sample_packing": "own", "datasets[0].field_chosen": "left"},
    ),
    "ax_simpo": (
        {"train.objective": "simpo", "train.simpo.beta": 0.1, "train.simpo.gamma": 1.5},
        {"rl": "carried", "simpo_gamma": "carried", "cpo_alpha": "left"},
    ),
    "ax_orpo": ({"train.objective": "orpo", "train.orpo.beta": 0.2}, {"rl": "left", "orpo_alpha": "carried"}),
    "ax_kto": (
        {"train.objective": "kto", "train.kto.desirable_weight": 0.5, "train.kto.undesirable_weight": 1.0},
        {"kto_desirable_weight": "carried"},
    ),
    "ax_reward": ({"train.objective": "reward", "data.pack": False}, {"reward_model": "carried"}),
    "ax_completion": (
        {
            "data.train": {"path": "hub:books", "columns": {"text": "content"}},
            "train.objective": "pretrain",
            "data.pack": True,
            "train.epochs": 2,
            "train.batch": 2,
        },
        {"datasets[0].field": "carried"},
    ),
    "ax_two_datasets": (
        {
            "data.train": [
                {"path": "hub:owner/many", "config": "medical", "split": "train_sft"},
                {"path": "rows.jsonl"},
            ],
            "data.eval": "held_out.jsonl",
            "train.eval_every": "100 steps",
            "save.keep": 4,
            "native.trainer.report_to": "none",
        },
        {
            "datasets[1].field_mesages": "unknown",
            "cosine_min_lr_ratio": "left",
            "plugins": "left",
            "chat_template": "left",
            "liger_rope": "decided",
        },
    ),
}
REFUSED = {
    "lf_ppo": ("STK182", "lf_ppo.yaml:3: stage"),
    "lf_ipo": ("STK182", "lf_ipo.yaml:5: pref_loss"),
    "lf_freeze": ("STK185", "lf_freeze.yaml:5: finetuning_type"),
    "lf_export": ("STK183", "lf_export.yaml:5: export_dir"),
    "ax_grpo": ("STK182", "ax_grpo.yaml:3: rl"),
}


def _translated(name: str, devices: int = 1) -> dialects.Migration:
    return dialects.read(EXAMPLES / f"{name}.yaml", EXAMPLES / "run.yaml", devices)


def _left(read: dialects.Migration, key: str) -> list[str]:
    """Why a key was not carried over."""
    return [one.reason for one in read.of("left") if one.key == key]


def _at(run: Any, path: str) -> Any:
    """A value of a `Run` by its dotted path."""
    for part in path.split("."):
        run = run[part]
    return run


def test_every_example_is_expected_and_there_are_enough_of_them() -> None:
    examples = {path.stem for path in EXAMPLES.glob("*.yaml")}
    assert examples == {*RIGHT, *REFUSED}
    assert len(examples) >= 20


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_an_example_becomes_the_run_file_that_means_the_same(name: str) -> None:
    values, outcomes = RIGHT[name]
    read = _translated(name)
    run = load.parse(read.text, "run.yaml").model_dump(exclude_unset=False)
    found = {path: _at(run, path) for path in values if path != "data.train"}
    assert found == {path: value for path, value in values.items() if path != "data.train"}
    if "data.train" in values:
        assert reader.parse(read.text, "run.yaml").values["data"]["train"] == values["data.train"]
    by_key = {one.key: one.outcome for one in read.findings}
    by_key |= {one.key: "left" for one in read.of("left")}
    assert {key: by_key.get(key) for key in outcomes} == outcomes


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_no_key_is_dropped_in_silence(name: str) -> None:
    path = EXAMPLES / f"{name}.yaml"
    document = reader.parse(path.read_text(encoding="utf-8"), path.name)
    read = _translated(name)
    named = {one.key: one.line for one in read.findings}
    assert {key: named.get(key) for key in document.values} == {key: document.lines[(key,)] for key in document.values}
    for finding in read.of("left", "unknown", "decided", "own", "equal"):
        assert f"`{finding.key}`" in read.text


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_stoker_does_not_train_is_refused_by_name_and_line(name: str) -> None:
    code, where = REFUSED[name]
    with pytest.raises(StokerError) as refused:
        _translated(name)
    assert (refused.value.code, refused.value.where) == (code, where)


@pytest.mark.parametrize(("name", "devices", "batch"), [("lf_lora_sft", 4, 32), ("ax_qlora_fsdp", 2, 32)])
def test_their_batch_is_per_device_and_ours_over_all(name: str, devices: int, batch: int) -> None:
    read = _translated(name, devices)
    assert read.batch == batch
    assert load.parse(read.text, "run.yaml").train.batch == batch


def test_an_unknown_key_is_named_with_its_line_and_the_nearest() -> None:
    unknown = {one.key: (one.line, one.fields["nearest"]) for one in _translated("lf_unknown_keys").of("unknown")}
    assert unknown["lora_rnak"][0] == 5
    assert "`lora_rank`" in unknown["lora_rnak"][1]
    assert set(unknown) == {"lora_rnak", "cutof_len"}


def test_a_secret_stays_out_of_the_run_file() -> None:
    secret = reader.parse((EXAMPLES / "lf_unknown_keys.yaml").read_text(), "a").values["hf_hub_token"]
    assert secret not in _translated("lf_unknown_keys").text


def _listed(folder: Path, entry: Values, stage: str = "sft") -> dialects.Migration:
    """A file of LLaMA-Factory's with one set, `own`, that its list describes."""
    (folder / "data").mkdir()
    (folder / "data/own.jsonl").write_text("{}\n", encoding="utf-8")
    (folder / "data/dataset_info.json").write_text(json.dumps({"own": entry}), encoding="utf-8")
    theirs = folder / "theirs.yaml"
    theirs.write_text(f"model_name_or_path: m\nstage: {stage}\ndo_train: true\ndataset: own\n", encoding="utf-8")
    return dialects.read(theirs, folder / "run.yaml", 1)


@pytest.mark.parametrize(
    ("stage", "entry", "columns"),
    [
        (
            "sft",
            {"columns": {"prompt": "output", "response": "instruction"}},
            {"prompt": "output", "answer": "instruction"},
        ),
        (
            "sft",
            {"columns": {"prompt": "instruction", "response": "output"}},
            {"prompt": "instruction", "answer": "output"},
        ),
        ("pt", {"columns": {"prompt": "content"}}, {"text": "content"}),
        ("sft", {"formatting": "sharegpt", "columns": {"messages": "turns"}}, {"messages": "turns"}),
    ],
)
@pytest.mark.parametrize("place", ["file_name", "hf_hub_url"])
def test_a_column_keeps_its_role(tmp_path: Path, stage: str, entry: Values, columns: Values, place: str) -> None:
    read = _listed(tmp_path, {place: "own.jsonl", **entry}, stage)
    (source,) = mixing.sources(load.parse(read.text, "run.yaml").data)
    assert (place == "file_name") == dataset_info.is_named(source.path)
    assert dataset_info.resolve(source, tmp_path).columns == Columns(**columns)
    assert not _left(read, "dataset")


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"formatting": "sharegpt", "tags": {"role_tag": "role", "content_tag": "content"}}, ""),
        ({"columns": {"prompt": "instruction", "response": "output", "images": "images"}}, "images, video"),
        ({"num_samples": 50}, "50"),
        ({"script_url": "x"}, "`script_url`"),
        ({"revision": "x"}, ""),
        ({"revision": "x", "hf_hub_url": "owner/own"}, "`revision`"),
    ],
)
def test_what_a_list_of_datasets_says_and_a_run_file_does_not_is_named(
    tmp_path: Path, entry: Values, named: str
) -> None:
    said = [run_file.describe(one) for one in _listed(tmp_path, {"file_name": "own.jsonl", **entry}).of("left")]
    assert len(said) == bool(named)
    assert named in "".join(said)


def test_the_columns_of_a_set_that_is_read_in_part_are_kept(tmp_path: Path) -> None:
    entry = {"file_name": "own.jsonl", "num_samples": 50, "columns": {"prompt": "ask", "response": "reply"}}
    (source,) = mixing.sources(load.parse(_listed(tmp_path, entry).text, "run.yaml").data)
    assert (source.path, source.columns) == ("data/own.jsonl", Columns(prompt="ask", answer="reply"))


@pytest.mark.parametrize("place", ["file_name", "hf_hub_url"])
@pytest.mark.parametrize(
    "entry", [{"columns": {"kto_tag": "good"}}, {"columns": {"response": "b"}}, {"formatting": "parrot"}]
)
def test_a_set_that_a_run_would_not_read_is_refused(tmp_path: Path, entry: Values, place: str) -> None:
    with pytest.raises(StokerError, match="STK362"):
        _listed(tmp_path, {place: "own.jsonl", **entry})


# ---- axolotl


def _axolotl(folder: Path, **keys: Any) -> dialects.Migration:
    theirs = folder / "theirs.json"
    whole = {"base_model": "m", "learning_rate": 1e-4, "datasets": [{"path": "a.jsonl", "type": "chat_template"}]}
    theirs.write_text(json.dumps({**whole, **keys}), encoding="utf-8")
    return dialects.read(theirs, folder / "run.yaml", 1)


@pytest.mark.parametrize(
    ("entry", "columns"),
    [
        ({"type": "chat_template"}, None),
        ({"type": "chat_template", "message_property_mappings": {"role": "from", "content": "value"}}, None),
        ({"type": "chat_template", "field_messages": "conversations"}, {"messages": "conversations"}),
        ({"type": "sharegpt"}, {"messages": "conversations"}),
        (
            {"type": "chat_template", "message_property_mappings": {"role": "from"}},
            {"messages": "messages", "role": "from", "content": "content"},
        ),
        (
            {"type": "chat_template", "message_field_role": "who"},
            {"messages": "messages", "role": "who", "content": "content"},
        ),
        ({"type": "completion"}, {"text": "text"}),
        ({"type": "completion", "path": "a.txt"}, None),
    ],
)
def test_columns_are_named_unless_rows_are_read_so_by_themselves(
    tmp_path: Path, entry: Values, columns: Values | None
) -> None:
    read = _axolotl(tmp_path, datasets=[{"path": "a.jsonl", **entry}])
    (source,) = mixing.sources(load.parse(read.text, "run.yaml").data)
    assert source.columns == (Columns(**columns) if columns else None)


@pytest.mark.parametrize(("held_out", "is_shared"), [("conversations", True), ("turns", False)])
def test_an_eval_set_has_the_columns_of_the_training_rows(tmp_path: Path, held_out: str, *, is_shared: bool) -> None:
    kind = {"type": "chat_template", "field_messages": "conversations"}
    test = {"path": "b.jsonl", **kind, "field_messages": held_out}
    read = _axolotl(tmp_path, datasets=[{"path": "a.jsonl", **kind}], test_datasets=[test])
    data = load.parse(read.text, "run.yaml").data
    assert data.columns == (Columns(messages="conversations") if is_shared else None)
    assert mixing.sources(data)[0].columns == Columns(messages="conversations")
    assert _left(read, "test_datasets") == ([] if is_shared else ["migrate.left.columns"])


@pytest.mark.parametrize(
    ("keys", "is_named"),
    [
        ({}, True),
        ({"excess_length_strategy": None}, True),
        ({"excess_length_strategy": "drop"}, True),
        ({"excess_length_strategy": "truncate"}, False),
        ({"datasets": [{"path": "a.jsonl", "type": "completion"}]}, False),
    ],
)
def test_rows_that_they_would_drop_are_named(tmp_path: Path, keys: Values, *, is_named: bool) -> None:
    assert _left(_axolotl(tmp_path, **keys), "excess_length_strategy") == ["migrate.left.excess"] * is_named


@pytest.mark.parametrize(
    ("asked", "targets", "is_named"),
    [
        (r"model\.layers\.[0-3]\..*_proj", "all-linear", True),
        ("all-linear", "all-linear", False),
        (["q_proj", "v_proj"], ["q_proj", "v_proj"], False),
        ("q_proj", ["q_proj"], False),
    ],
)
def test_a_pattern_of_modules_is_not_a_name(tmp_path: Path, asked: Any, targets: Any, *, is_named: bool) -> None:
    read = _axolotl(tmp_path, adapter="lora", lora_target_modules=asked)
    assert load.parse(read.text, "run.yaml").model_dump()["tune"]["targets"] == targets
    assert _left(read, "lora_target_modules") == ["migrate.left.pattern"] * is_named


@pytest.mark.parametrize(
    ("keys", "warmup", "is_named"),
    [
        ({}, "3%", True),
        ({"max_steps": 3333}, "3%", False),
        ({"max_steps": 3400}, 100, False),
        ({"max_steps": 3400, "warmup_ratio": 0.05}, "5%", False),
        ({"warmup_steps": 10}, 10, False),
    ],
)
def test_their_warmup_by_default_is_limited(tmp_path: Path, keys: Values, warmup: int | str, *, is_named: bool) -> None:
    read = _axolotl(tmp_path, **keys)
    assert load.parse(read.text, "run.yaml").train.warmup == warmup
    assert _left(read, "warmup_ratio") == ["migrate.remark.warmup"] * is_named


@pytest.mark.parametrize("keys", [{"use_swanlab": True}, {"use_swanlab": True, "swanlab_project": "p"}])
def test_a_tracker_of_axolotl_is_carried(tmp_path: Path, keys: Values) -> None:
    assert load.parse(_axolotl(tmp_path, **keys).text, "run.yaml").native.trainer["report_to"] == ["swanlab"]


@pytest.mark.parametrize(
    ("keys", "trackers", "named"),
    [
        ({"wandb_project": "p", "wandb_mode": "offline"}, None, "`WANDB_MODE=offline`"),
        ({"wandb_project": "p", "wandb_mode": "disabled"}, None, "`WANDB_MODE=disabled`"),
        ({"wandb_project": "p", "wandb_mode": "online"}, ["wandb"], ""),
        ({"wandb_project": "p", "wandb_mode": ""}, ["wandb"], ""),
        ({"wandb_project": "p", "wandb_mode": False}, ["wandb"], ""),
        (
            {"wandb_project": "p", "wandb_mode": "offline", "mlflow_tracking_uri": "u"},
            ["mlflow"],
            "`WANDB_MODE=offline`",
        ),
        ({"report_to": ["wandb", "mlflow"], "wandb_mode": "offline"}, ["mlflow"], "`WANDB_MODE=offline`"),
        ({"report_to": "wandb", "wandb_mode": "offline"}, None, "`WANDB_MODE=offline`"),
        ({"swanlab_project": "p", "swanlab_mode": "local"}, None, "`SWANLAB_MODE=local`"),
        ({"use_swanlab": True, "swanlab_mode": "disabled"}, None, "`SWANLAB_MODE=disabled`"),
        ({"use_swanlab": True, "swanlab_mode": "cloud"}, ["swanlab"], ""),
    ],
)
def test_a_tracker_that_stays_offline_is_not_sent_online(
    tmp_path: Path, keys: Values, trackers: list[str] | None, named: str
) -> None:
    read = _axolotl(tmp_path, **keys)
    assert load.parse(read.text, "run.yaml").native.trainer.get("report_to") == trackers
    said = [run_file.describe(one) for one in read.of("left") if one.reason == "migrate.left.offline"]
    assert bool(said) == bool(named)
    assert all(named in one for one in said)


@pytest.mark.parametrize(
    ("keys", "is_named"),
    [
        ({"peft_layer_replication": [[0, 2]]}, True),
        ({"peft_trainable_token_indices": [5]}, True),
        ({"peft_layer_replication": None}, False),
        ({"peft_use_dora": True, "lora_modules_to_save": ["lm_head"]}, False),
    ],
)
def test_an_option_that_rules_out_a_merge_is_remarked_on(tmp_path: Path, keys: Values, *, is_named: bool) -> None:
    read = _axolotl(tmp_path, adapter="lora", **keys)
    (key, *_) = keys
    assert _left(read, key) == ["migrate.remark.not_merged"] * is_named
    assert "carried" in {one.outcome for one in read.findings if one.key == key} or not keys[key]


# ---- both


def _llamafactory(folder: Path, **keys: Any) -> dialects.Migration:
    theirs = {"model_name_or_path": "m", "stage": "sft", "dataset": "a", **keys}
    (folder / "lf.yaml").write_text(json.dumps(theirs), encoding="utf-8")
    return dialects.read(folder / "lf.yaml", folder / "run.yaml", 1)


@pytest.mark.parametrize(
    ("keys", "trackers"),
    [
        ({"use_swanlab": True}, ["swanlab"]),
        ({"use_swanlab": True, "report_to": "none"}, ["swanlab"]),
        ({"use_swanlab": True, "report_to": ["wandb", "swanlab"]}, ["wandb", "swanlab"]),
        ({"report_to": "swanlab"}, ["swanlab"]),
        ({"use_swanlab": False}, None),
    ],
)
def test_swanlab_is_carried_and_its_variables_are_named(tmp_path: Path, keys: Values, trackers: list[str]) -> None:
    read = _llamafactory(tmp_path, **keys, swanlab_project="p", swanlab_mode="cloud")
    assert load.parse(read.text, "run.yaml").native.trainer.get("report_to") == trackers
    assert not [one for one in read.of("left") if "swanlab" in one.key]
    assert "SWANLAB_PROJECT" in read.text
    assert "SWANLAB_MODE" in read.text


@pytest.mark.parametrize(
    ("keys", "trackers"),
    [
        ({}, None),
        ({"report_to": "none"}, "none"),
        ({"report_to": ["wandb", "swanlab"]}, ["wandb"]),
        ({"report_to": ["wandb"]}, ["wandb"]),
    ],
)
def test_swanlab_on_this_machine_alone_is_not_sent_online(tmp_path: Path, keys: Values, trackers: Any) -> None:
    read = _llamafactory(tmp_path, use_swanlab=True, swanlab_mode="local", **keys)
    assert load.parse(read.text, "run.yaml").native.trainer.get("report_to") == trackers
    assert {"use_swanlab", "swanlab_mode"} <= {one.key for one in read.of("left")}
    assert "`SWANLAB_MODE=local`" in read.text


@pytest.mark.parametrize(
    ("keys", "outcome"),
    [
        ({"stage": "rm", "lora_dropout": 0.1}, "left"),
        ({"stage": "rm", "lora_dropout": 0}, "own"),
        ({"stage": "dpo", "lora_dropout": 0.1}, "own"),
        ({"stage": "kto", "lora_dropout": 0.1}, "own"),
        ({"stage": "sft", "lora_dropout": 0.1}, "carried"),
    ],
)
def test_dropout_of_a_reward_model_is_not_without_effect(tmp_path: Path, keys: Values, outcome: str) -> None:
    """Their trainer of reward models is transformers' own, which disables none; TRL's for pairs do."""
    (found,) = [one for one in _llamafactory(tmp_path, **keys).findings if one.key == "lora_dropout"]
    assert found.outcome == outcome


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize("key", ["num_train_epochs", "max_steps", "lora_rank", "learning_rate"])
def test_a_number_that_is_not_finite_cannot_be_read(tmp_path: Path, key: str, value: str) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(f"model_name_or_path: m\nstage: sft\ndataset: a\n{key}: {value}\n", encoding="utf-8")
    with pytest.raises(StokerError) as refused:
        dialects.read(theirs, tmp_path / "run.yaml", 1)
    assert (refused.value.code, refused.value.where) == ("STK184", f"theirs.yaml:4: {key}")


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_every_key_of_their_file_is_counted_once(name: str) -> None:
    read = _translated(name)
    counted = sum(len(read.of(outcome)) for outcome in ("carried", "equal", "decided", "own"))
    assert counted + len(read.not_carried) == read.keys
    assert [*read.not_carried, *read.beside] == sorted(
        read.of("left", "unknown"), key=lambda one: (one in read.beside, one.line)
    )


@pytest.mark.parametrize(("made", "known"), [(_llamafactory, llamafactory.KNOWN), (_axolotl, axolotl.KNOWN)])
def test_a_key_that_is_known_and_has_no_value_is_not_called_unknown(
    tmp_path: Path, made: Any, known: tuple[str, ...]
) -> None:
    needed = {"base_model", "datasets", "learning_rate", "model_name_or_path", "stage", "dataset"}
    read = made(tmp_path, **dict.fromkeys({*known} - needed), lerning_rate=1)
    assert [one.key for one in read.of("unknown")] == ["lerning_rate"]


@pytest.mark.parametrize(
    ("keys", "left", "reason"),
    [
        ({"pretraining_dataset": [{"path": "b.jsonl"}]}, "datasets", "migrate.left.unread"),
        ({"pretraining_dataset": [{"path": "b.jsonl"}], "rl": "dpo"}, "pretraining_dataset", "migrate.left.unread"),
        ({"reward_model": True, "rl": "dpo"}, "reward_model", "migrate.left.reward_model"),
        ({"pretraining_dataset": []}, "pretraining_dataset", "migrate.left.unread"),
    ],
)
def test_what_is_not_trained_beside_another_key_is_named(tmp_path: Path, keys: Values, left: str, reason: str) -> None:
    read = _axolotl(tmp_path, **keys)
    assert _left(read, left) == [reason]
    assert read.of("unknown") == []
    data = load.parse(read.text, "run.yaml").data
    assert mixing.sources(data)[0].path == ("b.jsonl" if left == "datasets" else "a.jsonl")


@pytest.mark.parametrize("keys", [{"rl": False, "reward_model": True}, {"reward_model": "yes"}])
def test_a_reward_model_without_preferences_is_carried(tmp_path: Path, keys: Values) -> None:
    read = _axolotl(tmp_path, **keys)
    assert load.parse(read.text, "run.yaml").train.objective == "reward"
    assert read.of("unknown") == []


@pytest.mark.parametrize("made", [_llamafactory, _axolotl])
@pytest.mark.parametrize(("steps", "every"), [(500, "auto"), (400, "auto"), (399, "399 steps")])
def test_saves_beyond_the_last_step_are_not_carried(tmp_path: Path, made: Any, steps: int, every: str) -> None:
    read = made(tmp_path, max_steps=400, save_steps=steps, save_strategy="steps")
    assert load.parse(read.text, "run.yaml").save.every == every
    assert ("`save_steps`" in read.text and "400 steps" in read.text) or every != "auto"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("learning_rate: 1e-4\nepochs: 3\n", "STK181"),
        ("- a\n- b\n", "STK181"),
        ("model: m\ndata: {train: a.jsonl}\n", "STK187"),
        ("model_name_or_path: m\nstage: sft\nlearning_rate: fast\ndataset: a\n", "STK184"),
        ("base_model: m\ndatasets: [{path: a.jsonl}]\n", "STK184"),  # no learning rate: theirs would not start
        ("base_model: m\ndatasets: a.jsonl\nlearning_rate: 1\n", "STK184"),
        ("model_name_or_path: m\nstage: sft\n", "STK186"),
        ("base_model: m\nlearning_rate: 1\n", "STK186"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(tmp_path: Path, text: str, code: str) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(text, encoding="utf-8")
    with pytest.raises(StokerError) as refused:
        dialects.read(theirs, tmp_path / "run.yaml", 1)
    assert refused.value.code == code
    with pytest.raises(StokerError, match="STK180"):
        dialects.read(tmp_path / "absent.yaml", tmp_path / "run.yaml", 1)


def test_a_value_that_a_run_file_refuses_is_named_at_its_key_in_their_file(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(
        "base_model: m\nlearning_rate: 5\ndatasets: [{path: a.jsonl}]\nmicro_batch_size: 0\nlora_r: 0\nadapter: lora\n",
        encoding="utf-8",
    )
    with pytest.raises(StokerError) as refused:
        dialects.read(theirs, tmp_path / "run.yaml", 1)
    where = {(one.code, one.where) for one in refused.value.errors}
    assert ("STK107", "theirs.yaml:2: learning_rate") in where
    assert ("STK107", "theirs.yaml:5: lora_r") in where
    assert ("STK107", "theirs.yaml: train.batch") in where


def test_yaml_1_1_is_read_as_they_read_it(tmp_path: Path) -> None:
    """`no` without quotes is false there; a number may be text."""
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(
        "model_name_or_path: m\nstage: sft\ndataset: a\nval_size: '0.1'\neval_strategy: no\nfp16: off\n"
        "learning_rate: '1e-4'\nwarmup_steps: 0.03\n",
        encoding="utf-8",
    )
    run = load.parse(dialects.read(theirs, tmp_path / "run.yaml", 1).text, "run.yaml")
    assert (run.train.eval_every, run.data.eval, run.where.precision) == ("never", "10%", "auto")
    assert (run.train.learning_rate, run.train.warmup) == (1e-4, "3%")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("module", [llamafactory, axolotl])
def test_every_reason_has_a_sentence(module: Any, language: str) -> None:
    reasons = {rule.reason for rule in module._RULES.values() if hasattr(rule, "reason")}
    assert all(messages.in_language(language, reason) for reason in reasons)


WRONG: list[Any] = [None, True, -1, 1.5, math.inf, math.nan, "x", [], [{}], {"a": 1}]
WHOLE: dict[Any, Values] = {
    llamafactory: {"model_name_or_path": "m", "stage": "sft", "do_train": True, "dataset": "a", "val_size": 0.1},
    axolotl: {
        "base_model": "m",
        "learning_rate": 1e-4,
        "adapter": "lora",
        "load_in_4bit": True,
        "val_set_size": 0.1,
        "datasets": [{"path": "a.jsonl", "type": "chat_template"}],
    },
}
INNER = (*axolotl._ROW_KEYS, *axolotl._MESSAGE_KEYS, "roles_to_train", "train_on_eos", "text_column")


def _is_answered(folder: Path, content: Values) -> bool:
    """Whether a file is translated, or refused in words."""
    theirs = folder / "theirs.json"
    theirs.write_text(json.dumps(content).replace("Infinity", ".inf").replace("NaN", ".nan"), encoding="utf-8")
    try:
        dialects.read(theirs, folder / "run.yaml", 1)
    except StokerError as error:
        return bool(error.what and error.hint)
    return True


@pytest.mark.parametrize("module", [llamafactory, axolotl], ids=lambda one: one.NAME)
def test_no_value_of_a_key_is_a_surprise(module: Any, tmp_path: Path) -> None:
    for value in WRONG:
        assert _is_answered(tmp_path, {**dict.fromkeys(module._RULES, value), **WHOLE[module]}), value
        for key in module._HANDLED:
            assert _is_answered(tmp_path, {**WHOLE[module], key: value}), (key, value)


def test_no_value_inside_a_dataset_is_a_surprise(tmp_path: Path) -> None:
    for key in INNER:
        for value in WRONG:
            entry = {"path": "a.jsonl", "type": "chat_template", key: value}
            assert _is_answered(tmp_path, {**WHOLE[axolotl], "datasets": [entry]}), (key, value)


@pytest.mark.parametrize("key", ["file_name", "hf_hub_url", "subset", "split", "formatting", "columns", "tags"])
def test_no_value_of_a_table_of_datasets_is_a_surprise(tmp_path: Path, key: str) -> None:
    (tmp_path / "data").mkdir()
    for value in [*WRONG, {"messages": 5, "prompt": [], "role_tag": {}}]:
        table = {"a": {"file_name": "a.jsonl", "formatting": "sharegpt", key: value}}
        (tmp_path / "data/dataset_info.json").write_text(json.dumps(table), encoding="utf-8")
        assert _is_answered(tmp_path, WHOLE[llamafactory]), value
