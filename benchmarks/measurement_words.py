"""What the words in a measurement table's columns mean: one function per column, each a rule with its reason.

Rules go by what a column says, never by who published it. What is not stated gets a stated default (see
docs/concepts/planner-accuracy.md); a word that is not known is a reason not to compare. Nothing here raises.
"""

import datetime
import functools
import math
import re
from dataclasses import dataclass
from statistics import NormalDist

from stoker.estimate import layers
from stoker.facts import cards
from stoker.facts.cards import Card
from stoker.facts.shapes import ModelShape

Row = dict[str, str]
Date = datetime.date

TODAY = Date(2026, 11, 1)
"""The table was collected in November 2026: what has no date is as new as that."""
_TORCH_ENDS = {
    "1": Date(2023, 3, 1), "2.0": Date(2023, 10, 1), "2.1": Date(2024, 1, 30), "2.2": Date(2024, 4, 24),
    "2.3": Date(2024, 7, 24), "2.4": Date(2024, 10, 17), "2.5": Date(2025, 1, 29), "2.6": Date(2025, 4, 23),
}  # fmt: skip
"""When a torch release was followed by the next: a run with it is no younger."""
PEFT_KEEPS_DTYPE = Date(2023, 11, 1)
"""peft 0.6: a new adapter takes the dtype of the layer it is put on; before, it stayed in fp32."""
PEFT_CASTS_ADAPTERS = Date(2024, 5, 16)
"""peft 0.11: adapters of 16-bit models are cast to fp32 (`autocast_adapter_dtype`)."""
NO_SHIFTED_LOGITS = Date(2025, 2, 1)
"""transformers 4.49: the loss shifts labels; before, it copied the logits without their last position."""
BNB_DROPS_INPUTS = Date(2024, 3, 8)
"""bitsandbytes 0.43: a 4-bit or 8-bit layer no longer keeps its input."""
SDPA_IS_DEFAULT = Date(2023, 12, 11)
"""transformers 4.36: Llama-like models use sdpa unless told otherwise."""
FLASH_2 = Date(2023, 8, 1)
"""FlashAttention 2 came out in July 2023; flash before that, or Triton's, is the first, as fast as efficient."""
TRL_CHECKPOINTS = Date(2025, 7, 1)
"""TRL 0.20: `SFTConfig.gradient_checkpointing` is on by default."""
FUSED_IS_DEFAULT = Date(2025, 11, 1)
"""transformers 5: `optim` is `adamw_torch_fused` by default."""
OWN_LOSS = ("qwen", "baichuan")
"""Families whose own model code hands 16-bit logits to the loss where transformers' casts them to fp32."""
TUNE_FUSES, TUNE_CHUNKS = Date(2024, 8, 14), Date(2024, 11, 6)
"""torchtune, whose attention is "sdpa/flex": its recipes ask for fused AdamW since 0.2.1, for the chunked loss since
0.4."""
COMPOSER_OPTIMIZERS = "decoupled_adamw"
"""Composer's own: llm-foundry ran, whose models keep norms in 16 bits under amp and whose default loss is flash-attn's
fused cross entropy, which takes 16-bit logits and makes no fp32 copy."""
TRAINER_OPTIMIZERS = re.compile(r"adamw_torch|adamw_8bit|adamw_bnb|paged_adamw|adamw \(default\)|adamw_hf")
"""Values of `TrainingArguments.optim`: transformers' Trainer ran, whose `bf16` and `fp16` mean autocast."""


def number(text: str) -> float | None:
    """The figure at the start of a cell (`1,024`, `8k`, `2x8`, `~17.5 GB`), or None."""
    found = re.match(r"\s*[~<>≈]?\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(k\b|\s*[x×]\s*(\d+))?", text.replace(",", "").lower())
    if not found:
        return None
    times = 1024 if found[2] == "k" else int(found[3] or 1)
    return float(found[1]) * times


def whole(text: str, default: int) -> int:
    found = number(text)
    return max(1, round(found)) if found else default


def accumulation(row: Row, micro: int, replicas: int) -> int:
    """Micro batches of a step: stated, else from the global batch in the notes, else one."""
    stated = number(row["grad_accum"])
    batch = re.search(r"(?:\bGBS|global_batch|effective batch)\s*[=~ ]+\s*(\d+)", row["notes"])
    if stated or not batch:
        return max(1, round(stated or 1))
    return max(1, round(int(batch[1]) / (micro * replicas)))


def era(row: Row) -> Date:
    """When the software was current: the run's or file's date, or earlier where the row names an older torch."""
    stamp = row["source_commit_or_date"]
    dates = re.findall(r"run (\d{4})-(\d\d)-(\d\d)", stamp) or re.findall(r"(\d{4})-(\d\d)-(\d\d)", stamp)
    found = [_date(*map(int, parts)) for parts in dates[:1]] or [TODAY]
    words = f"{row['notes']} {row['attention']}"
    for version in re.findall(r"torch (\d+\.\d+)", words):
        found += [_TORCH_ENDS.get(version, _TORCH_ENDS["1"] if version.startswith("1.") else TODAY)]
    found += [Date(int(year), 7, 1) for year in re.findall(r"\b(?:mid|[A-Z][a-z]{2})-(20\d\d)", words)]
    return min(found)


def _date(year: int, month: int, day: int) -> Date:
    try:
        return Date(year, month, day)
    except ValueError:
        return Date(year, 1, 1)


def by_trainer(row: Row) -> bool:
    """Whether transformers' Trainer ran, by the name of the optimizer or its own."""
    named = TRAINER_OPTIMIZERS.search(row["optimizer"].lower())
    return bool(named) or "sfttrainer" in row["notes"].lower()


DEEPSPEED_BUCKET = 500_000_000
"""`reduce_bucket_size` where a DeepSpeed configuration does not state it."""


def by_torchtune(row: Row) -> bool:
    """Whether torchtune ran, which alone takes sdpa or flex attention by what is there."""
    return "sdpa/flex" in row["attention"].lower()


def by_deepspeed(row: Row) -> bool:
    """Whether DeepSpeed's engine ran: fp32 masters of what is trained, and no autocast."""
    said = "zero" in row["parallelism"].lower() or "deepspeed" in row["optimizer"].lower()
    return said or bool(re.search(r"deepspeed zero", row["notes"].lower()))


# Method.


@dataclass(frozen=True)
class Method:
    """`full`, `lora` or `qlora`, or why it is none of them."""

    kind: str = ""
    reason: str = ""


_OTHER_OPTIMIZERS = ("galore", "lisa", "muon", "lora-fa", "4bit", "apollo", "lomo", "badam")
_OTHER_VARIANTS = ("galore", "lisa", "spectrum", "dora", "longlora", "freeze", "vera", "adalora", "prefix", "prompt")
"""What keeps other tensors than the method it is named with; other words in brackets change none (rsLoRA, packing)."""


def method(row: Row) -> Method:
    """What is trained. Variants of LoRA that keep LoRA's tensors are LoRA; other adapters keep others and are not."""
    text = row["method"].lower().strip()
    head, _, inside = text.partition("(")
    head, inside = head.strip(), inside.rstrip(")")
    optimizer = row["optimizer"].lower()
    strange = next((word for word in _OTHER_OPTIMIZERS if word in optimizer), "")
    if strange or any(word in inside for word in _OTHER_VARIANTS):
        return Method(reason=f"optimizer or variant not described: {strange or inside}")
    if re.search(r"\b(dpo|kto|grpo|ppo|orpo|rlhf|reward|rm|distill)", text):
        return Method(reason="preference objective: another step than one forward and one backward pass")
    if re.match(r"(continued?[- ]?)?pre-?train|full|sft|(fine-?)tun", head):
        return Method("full")
    if head in ("lora", "qlora", "rslora", "lora+"):
        return Method("qlora" if head == "qlora" else "lora")
    return Method(reason=f"trains other tensors than full, LoRA or QLoRA: {head or '(blank)'}")


def targets(row: Row, shape: ModelShape) -> tuple[str, ...]:
    """Layers with an adapter, by the names the family gives them; empty for all linear layers."""
    roles, known = _roles(row["lora_targets"]), layers.by_role(shape)
    chosen = [one.name for role, one in known.items() if _PARTS.get(role, {role}) & roles]
    return tuple(dict.fromkeys(chosen)) if 0 < len(chosen) < len(known) else ()


_PARTS = {"qkv": {"q", "k", "v"}, "gate_up": {"gate", "up"}}
"""Layers that some families join."""
_ROLE_WORDS = {
    "q": {"q"}, "k": {"k"}, "v": {"v"}, "o": {"o"}, "qkv": {"q", "k", "v"}, "mlp": {"gate", "up", "down"},
    "query": {"q"}, "key": {"k"}, "value": {"v"}, "c_attn": {"q", "k", "v"}, "w_pack": {"q", "k", "v"},
    "query_key_value": {"q", "k", "v"}, "wqkv": {"q", "k", "v"}, "linear_qkv": {"q", "k", "v"},
    "qkv_proj": {"q", "k", "v"}, "attn": {"q", "k", "v"}, "proj": {"o"}, "projection": {"o"}, "output": {"o"},
    "output_proj": {"o"}, "o_proj": {"o"}, "attn.c_proj": {"o"}, "linear_proj": {"o"}, "wo": {"o"},
    "out_proj": {"o"}, "q_proj": {"q"}, "k_proj": {"k"}, "v_proj": {"v"}, "gate_proj": {"gate"}, "gate": {"gate"},
    "up_proj": {"up"}, "up": {"up"}, "down_proj": {"down"}, "down": {"down"}, "w1": {"up"}, "w2": {"gate"},
    "c_proj": {"o", "down"}, "gate_up_proj": {"gate", "up"}, "dense": {"o"}, "attention": {"q", "k", "v", "o"},
    "dense_h_to_4h": {"gate", "up"}, "dense_4h_to_h": {"down"}, "c_fc": {"up"}, "fc1": {"up"}, "fc2": {"down"},
    "linear_fc1": {"gate", "up"}, "linear_fc2": {"down"},
}  # fmt: skip


def _roles(text: str) -> set[str]:
    """Parts of a block that a list of layer names means; none for all of them."""
    lower = text.lower().strip()
    if lower == "default":
        return {"q", "k", "v"}  # ms-swift's DEFAULT: the projections of queries, keys and values.
    words = [word for word in re.split(r"[,+\s()]+", lower) if word in _ROLE_WORDS]
    if "attention" in words and len(words) > 1:
        words.remove("attention")
    if "..." in lower or not words:
        return set()
    return set().union(*(_ROLE_WORDS[word] for word in words))


def trained_whole(row: Row) -> tuple[str, ...]:
    """Embedding and output layer where they are trained beside the adapter."""
    text = row["lora_targets"].lower()
    trained = "full" in text or "trained" in text
    outer = (("wte", "embed_tokens"), ("embed_tokens", "embed_tokens"), ("lm_head", "lm_head"))
    return tuple(dict.fromkeys(name for word, name in outer if trained and word in text))


# Lengths.


@dataclass(frozen=True)
class Lengths:
    """Tokens of the longest row a device sees, of a mean row with padding, and the share that is not padding."""

    longest: int
    mean_padded: float | None = None
    kept: float = 1.0


DATASET_ROWS = {"metamathqa": 370_000}
"""Rows of data sets that a cap was chosen to hold, where a run sees a part (peft's data.py: 93.8 % of 395,000)."""
_PADDING_GROUPS = 20
"""Micro batches that a bucketing loader sorts together (peft's BUCKET_FACTOR)."""


def lengths(row: Row, cap: int, micro: int) -> Lengths:
    """Every row has `cap` tokens where rows are packed or padded to it; else lengths follow what the notes say."""
    packed, notes = row["packed"].lower(), row["notes"]
    if packed.startswith(("y", "?", "fixed")) or "max" in packed or packed == "n (padded)":
        return Lengths(cap)
    stated = re.search(r"([\d.]+)\s*±\s*([\d.]+)[^;]*?min=(\d+), max=(\d+)", notes)
    if stated:
        mean, spread, longest = float(stated[1]), float(stated[2]), int(stated[4])
        seen = re.search(r"dataset=\S*#(\d+)", notes)
        if seen:
            longest = min(longest, _longest_of(int(seen[1]), mean, _sigma(mean, spread)))
        return Lengths(min(cap, longest))
    mean_only = re.search(r"(\w+) mean ~?(\d+)", notes)
    if mean_only and row["tokens_per_s_total"]:
        return _of_mean(notes, mean_only[1], float(mean_only[2]), cap, micro)
    return Lengths(cap)


def varied(row: Row) -> bool:
    """Rows padded only to the longest of their batch, or said to vary.

    Not where the longest comes first or the cache is emptied.
    """
    packed, notes = row["packed"].lower(), row["notes"].lower()
    same = "max" in packed or packed == "n (padded)" or "longest" in f"{packed} {notes}".replace("longest in batch", "")
    differ = packed.startswith("n") or "lengths vary" in notes or "varying lengths" in row["flag_mem"].lower()
    return differ and not same and "empty_cache" not in notes


def _of_mean(notes: str, dataset: str, mean: float, cap: int, micro: int) -> Lengths:
    """Lognormal lengths whose mean is stated and whose longest row, of the whole set, has the cap."""
    total = re.search(r"tokens=(\d+)", notes)
    seen = int(total[1]) / mean if total else 10_000.0
    rows = DATASET_ROWS.get(dataset.lower(), seen)
    sigma = _sigma_of_cap(mean, cap, rows)
    groups = _PADDING_GROUPS if "bucketed" in notes else 1
    padded = _mean_longest(mean, sigma, micro, groups)
    return Lengths(min(cap, _longest_of(seen, mean, sigma)), padded, mean / padded)


def _sigma(mean: float, spread: float) -> float:
    return math.sqrt(math.log1p((spread / mean) ** 2))


def _sigma_of_cap(mean: float, cap: float, rows: float) -> float:
    """Spread of a lognormal of this mean whose longest of `rows` draws is, in the median, the cap."""
    reach, log_ratio = _tail(rows), math.log(max(cap / mean, 1.01))
    return reach - math.sqrt(max(0.0, reach * reach - 2 * log_ratio))


def _tail(rows: float) -> float:
    """Median of the largest of so many standard normal draws."""
    return NormalDist().inv_cdf(0.5 ** (1 / max(2.0, rows)))


def _longest_of(rows: float, mean: float, sigma: float) -> int:
    return round(mean * math.exp(sigma * _tail(rows) - sigma * sigma / 2))


def _mean_longest(mean: float, sigma: float, micro: int, groups: int) -> float:
    """Mean over micro batches of their longest row, where `groups` of them are formed from one sorted lot."""
    lot = micro * groups
    tops = [(micro * (group + 1) - 0.5) / lot if groups > 1 else micro / (micro + 1) for group in range(groups)]
    longest = [math.exp(sigma * NormalDist().inv_cdf(top) - sigma * sigma / 2) for top in tops]
    return mean * max(1.0, sum(longest) / len(longest))


def per_node(row: Row, count: int) -> int:
    """Cards of a node: eight, unless the row says otherwise; "multinode" without a number is two nodes."""
    text = f"{row['parallelism']} {row['notes']}".lower()
    stated = re.search(r"(\d+) nodes? ?(?:x|×|of|each with) ?(\d+)", text)
    if stated:
        return max(1, min(count, int(stated[2])))
    return max(1, count // 2) if re.search(r"multi-?node", text) and count <= 8 else min(8, count)


# Numbers and kernels.


def recompute(row: Row, when: Date) -> str:
    """Gradient checkpointing. A bare `?` is the library's default: off, but on in TRL since 0.20."""
    text = row["grad_checkpointing"].lower()
    if re.search(r"selective|per-op|\bsac\b|\bop\b", text):
        return "selective"
    if text.startswith("?") or not text:
        likely = "probably y" in text or "default y" in text
        return "full" if likely or ("trl" in row["notes"].lower() and when >= TRL_CHECKPOINTS) else "none"
    return "none" if text.startswith(("n", "false", "off", "0", "-")) else "full"


def attention(row: Row, when: Date) -> str:
    """What attention is asked for, as `plan.choices` names it; empty for a word that is not known."""
    text = row["attention"].lower()
    if "eager/sdpa" in text or ("default" in text and "sdpa" not in text):
        return "sdpa" if when >= SDPA_IS_DEFAULT else "eager"
    if "flex" in text and "sdpa" in text:
        return "flash_attention_2" if compiled(row) or not row["packed"].lower().startswith("y") else "sdpa"
    if any(word in text for word in ("cudnn", "fa3", "flash_attention_3")):
        return "native"
    if any(word in text for word in ("flash", "flex", "fa2", "xformers")):
        first = when < FLASH_2 or "triton" in row["notes"].lower()
        return "efficient" if first else "flash_attention_2"
    for name, said in (("sdpa", ("sdpa",)), ("efficient", ("efficient",)), ("eager", ("eager", "fused", "math"))):
        if any(word in text for word in said):
            return name
    if text.strip(" ?"):
        return ""
    return "sdpa" if when >= Date(2023, 3, 15) else "eager"  # torch 2.0 brought sdpa


def masked(row: Row, asked: str, micro: int) -> bool:
    """A padded batch of several rows needs a mask tensor under sdpa, as do packed documents kept apart.

    flash-attn drops padding instead, and compiled flex attention needs no tensor.
    """
    padded = micro > 1 and row["packed"].lower().startswith("n")
    return asked in ("sdpa", "efficient") and (padded or "packed mask" in row["attention"].lower())


def optimizer(row: Row, when: Date) -> str:
    """AdamW in torch's foreach form unless the name says otherwise."""
    text = row["optimizer"].lower()
    eight = "8bit" in text or "8-bit" in text
    if eight:
        return "paged_adamw_8bit" if "paged" in text else "adamw_8bit"
    if "adafactor" in text:
        return "adafactor"
    if re.search(r"\bsgd\b", text):
        return "sgd"
    # DeepSpeed's, Apex' and Megatron's Adam are fused kernels; Composer's goes weight by weight: no big temporaries.
    fused = ("fused", "distributed", "deepspeed", "decoupled", "apex", "megatron", "in_bwd", "paged")
    by_default = ("default" in text and when >= FUSED_IS_DEFAULT) or (by_torchtune(row) and when >= TUNE_FUSES)
    if by_default or by_deepspeed(row) or any(word in text for word in fused):
        return "adamw_fused"
    return "adamw"


KNOWN_OPTIMIZERS = re.compile(r"adam|adafactor|\bsgd\b|^[? ]*(\(.*\))?$")


def unknown_words(row: Row) -> str:
    """What a row states in a word that nothing here knows; no step is guessed for it."""
    said = {
        "attention": (row["attention"], bool(attention(row, era(row)))),
        "optimizer": (row["optimizer"], bool(KNOWN_OPTIMIZERS.search(row["optimizer"].lower()))),
        "parallelism": (row["parallelism"], bool(KNOWN_PARALLELISM.search(row["parallelism"].lower()))),
    }
    return next((f"{column} not described: {text}" for column, (text, known) in said.items() if not known), "")


KNOWN_PARALLELISM = re.compile(
    r"^[? ]*$|none|single|fsdp|hsdp|zero|\bddp|\bdp\b|megatron|device_map|naive|no.shard|see "
    r"|\b(tp|pp|cp|sp|ep)[ =:-]?\d"
)


def in_backward(row: Row) -> bool:
    """Whether each gradient is used and freed in the backward pass."""
    text = row["optimizer"].lower()
    return "in_bwd" in text or "into backward" in text


def product_bits(row: Row) -> int:
    text = row["compute_dtype"].lower()
    if "fp4" in text:
        return 4
    return 8 if "fp8" in text or "float8" in text or "mxfp8" in text else 16


def compute(row: Row) -> str:
    """Arithmetic outside fp8 products; bf16 where nothing is said, fp16 where the row names it alone or first."""
    text = row["compute_dtype"].lower() or row["weights_dtype"].lower()
    if re.match(r"(fp16|float16|16-mixed|16-true)", text):
        return "fp16"
    if re.match(r"(fp32|float32|32|tf32)", text):
        return "fp32"
    return "bf16"


@dataclass(frozen=True)
class Held:
    """How weights are held."""

    weights: str
    outer: str
    master: bool
    autocast: bool
    reason: str = ""


def held(row: Row, kind: str, arithmetic: str, sharded: bool) -> Held:  # noqa: FBT001
    """Weights by the words of `weights_dtype`; who keeps fp32 masters and who runs under autocast."""
    text = row["weights_dtype"].lower()
    deepspeed = by_deepspeed(row)
    quantised = _quantised(text, kind)
    if quantised is not None:
        if quantised == "?":
            return Held("", "", False, False, f"weights not described: {text}")
        outer = _outer(row, text, quantised, arithmetic, sharded)
        return Held(quantised, outer, deepspeed, by_trainer(row) and not deepspeed)
    amp = bool(re.search(r"amp|mixed", row["compute_dtype"].lower())) and COMPOSER_OPTIMIZERS not in row["optimizer"]
    sixteen = "fp16" if arithmetic == "fp16" else "bf16"
    by_fsdp = "fsdp" in row["parallelism"].lower() and not re.match(r"(bf16|fp16|16-bit)", text)
    if "master" in text and not by_fsdp and not re.match(r"fp32 master \(fsdp", text):
        return Held(sixteen, sixteen, True, False)
    if re.match(r"(fp32|float32|32)", text) and "adapters over" not in text:
        return Held("fp32", "fp32", False, amp or (arithmetic != "fp32" and not sharded))
    weights = "fp16" if "fp16" in text or "float16" in text.replace("bfloat16", "") else sixteen
    if not text or text == "?":
        weights = "fp32" if arithmetic == "fp32" else sixteen
    # DeepSpeed's own bf16 and fp16 keep fp32 masters of what is trained and use no autocast.
    return Held(weights, weights, deepspeed, (by_trainer(row) and not deepspeed) or amp)


def _quantised(text: str, kind: str) -> str | None:
    """The quantised form, `?` for one that is not described, None for none."""
    if any(word in text for word in ("2bit", "2-bit", "3bit", "3-bit", "fp8", "int2")):
        return "?"
    if "nf4" in text or "fp4" in text or "prequantized" in text or ("bnb" in text and re.search(r"4-?bit", text)):
        double = "double" in text or "-dq" in text or "prequantized" in text
        return "nf4_double" if double else "nf4"
    if "int8" in text or "8-bit" in text or "8bit" in text:
        return "int8"
    if "int4" in text or "4-bit" in text or "4bit" in text:
        return "int4"
    return "nf4" if kind == "qlora" else None


def _outer(row: Row, text: str, quantised: str, arithmetic: str, sharded: bool) -> str:  # noqa: FBT001
    """Embedding and norms beside quantised layers.

    peft's prepare_model_for_kbit_training, which goes with the Trainer, casts them to fp32, except over GPTQ and the
    like. FSDP wants one dtype for all; loops of their own and Unsloth leave them as they are.
    """
    other = re.search(r"gptq|awq|hqq|torchao", text) or quantised == "int4"
    cast = by_trainer(row) and "unsloth" not in row["notes"].lower()
    return "fp32" if cast and not other and not sharded else arithmetic


def adapter_dtype(row: Row, own: Held, arithmetic: str, when: Date, *, sharded: bool) -> str:
    """fp32 where the row says so, over quantised layers, or by peft's rule of the time; else as the layers."""
    if "fp32 adapters" in row["weights_dtype"].lower():
        return "fp32"
    if sharded or by_deepspeed(row) or not by_trainer(row):  # DeepSpeed casts the whole module, adapters too
        return arithmetic
    if own.weights not in ("bf16", "fp16"):
        return "fp32"
    return own.weights if PEFT_KEEPS_DTYPE <= when < PEFT_CASTS_ADAPTERS else "fp32"


def loss(row: Row, shape: ModelShape, when: Date) -> tuple[str, bool]:
    """The loss' form, and whether it copies the logits without their last position."""
    notes = row["notes"].lower()
    if "liger=true" in notes or "cce" in notes.split() or "+ cce" in notes or "fused ce" in notes:
        return "liger", False
    if "chunked_ce=y" in notes or (by_torchtune(row) and when >= TUNE_CHUNKS and "chunked_ce=" not in notes):
        return "chunked", False
    loader_shifts = row["method"].lower().startswith("pretrain") or "megatron" in row["parallelism"].lower()
    shifted = not loader_shifts and when < NO_SHIFTED_LOGITS
    sixteen = shape.family in OWN_LOSS or COMPOSER_OPTIMIZERS in row["optimizer"]
    return ("logits" if sixteen else "logits_fp32"), shifted


def held_outputs(row: Row) -> bool:
    """Loops of their own around a model keep its logits by name until the next step; the Trainer does not.

    Those that pretrain, compile or cut the loss into chunks have been seen to care, and free them.
    """
    pretrains = row["method"].lower().startswith("pretrain")
    return not (by_trainer(row) or pretrains or compiled(row) or "chunked_ce" in row["notes"].lower())


def compiled(row: Row) -> bool:
    """torch.compile by the notes, or hand-fused kernels by name (TransformerEngine, Unsloth, fused MLP)."""
    notes, kernel = row["notes"].lower(), row["attention"].lower()
    said = "torch.compile" in notes or "compile=y" in notes or "thunder" in notes
    by_hand = "transformerengine" in kernel or "(te/" in kernel or "unsloth" in notes or "fused mlp" in notes
    return (said and "compile=n" not in notes) or by_hand


# Cards.


def family(card: Card) -> str:
    """`A100` of `A100-80-SXM4`."""
    return re.sub(r"^rtx", "", card.name.split("-")[0].lower().replace(" ", ""))


@functools.cache
def named_cards(text: str) -> tuple[Card, ...]:
    """The cards a cell means, one per family it names; of a family's, the one whose form and memory fit best."""
    by_family: dict[str, list[Card]] = {}
    for card in cards.cards():
        by_family.setdefault(family(card), []).append(card)
    return tuple(_best(kin, text.lower()) for name, kin in by_family.items() if f" {name} " in _spaced(text))


def _spaced(text: str) -> str:
    """Names of cards as single words: `RTX 2080 Ti` is ` 2080ti `, a size in GB is nothing."""
    lower = re.sub(r"rtx\s*|\b\d+\s*[x×*]\s*(?=[a-z])", " ", text.lower())
    joined = re.sub(r"(\d) ?(ti|super)\b", r"\1\2", re.sub(r"\bpro 6000", "pro6000", lower))
    return " " + re.sub(r"[^a-z0-9]+", " ", re.sub(r"(\d+)\s*gb\b", " ", joined)) + " "


def _best(choices: list[Card], text: str) -> Card:
    """Of one family: the memory stated (the largest, of several), then the form, SXM where none is stated."""
    size = max((int(size) for size in re.findall(r"(\d+)\s*gb", text)), default=None)
    form = "pcie" if re.search(r"(?<!slow )pcie", text) else "nvl" if re.search(r"\bnvl\b", text) else "sxm"

    return min(
        choices,
        key=lambda card: (
            size is not None and abs(card.memory_gb - size) > _SAME_GB,
            form not in card.name.lower(),
            card.memory_gb,
        ),
    )


_SAME_GB = 4
"""Names round: a 94 GB card is sold as 96 GB too."""


def link(text: str) -> str:
    """How cards of a box are linked, where a cell says that it is not as the card's own figure."""
    lower = text.lower()
    if "slow pcie" in lower:
        return "slow"
    if "h100" in lower and re.search(r"9[56]\s*gi?b", lower):
        return "nvlink"  # the 96 GB part is an SXM one, unlike the 94 GB card of the catalogue
    return "pcie" if "no nvlink" in lower or "no p2p" in lower else "card"


FOREIGN = re.compile(r"\bMI\d{3}|gaudi|tpu|ascend|910b|xpu|trainium", re.IGNORECASE)
"""Chips that run no CUDA."""


def capacity(text: str, used: float) -> int | None:
    """Bytes of the largest card a cell names, of its family's next where more was in use; else of the size stated."""
    found = named_cards(text)
    if found:
        largest = max(found, key=lambda card: card.memory_bytes)
        kin = [card.memory_bytes for card in cards.cards() if family(card) == family(largest)]
        return min((size for size in kin if size >= max(0.97 * used, largest.memory_bytes)), default=max(kin))
    size = re.search(r"(\d+)\s*GB", text)
    return int(size[1]) << 30 if size else None
