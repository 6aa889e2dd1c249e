"""Weighs the catalogue models that no formula counts, and writes `facts/data/model_parts.json`.

    python tools/weigh_catalogue.py            write it (needs torch, transformers, peft, bitsandbytes; minutes)

Their sizes: `tools/catalogue_configs.json`, and the rows of `facts/data/shapes.json` with experts.
"""

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from stoker.engine import weigh
from stoker.facts import model_parts

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src/stoker/facts/data"
TARGET = DATA / "model_parts.json"
EXPERT_KEYS = {
    "mixtral": ("num_local_experts", "intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"),
}
QWEN_KEYS = ("num_experts", "moe_intermediate_size")


def main() -> None:
    """Write the records of every such model; models of the same sizes share one."""
    rows = [*_sparse_rows(), *json.loads((ROOT / "tools/catalogue_configs.json").read_text(encoding="utf-8"))["models"]]
    records: dict[str, Any] = {}
    models: dict[str, str] = {}
    sources: dict[str, str] = {}
    published: dict[str, float] = {}
    for row in rows:
        name = row["ids"][0]
        config = dict(row["config"])
        parts = weigh.weigh(AutoConfig.for_model(config.pop("model_type"), **config))
        records[name], sources[name], published[name] = model_parts.to_json(parts), row["source"], row["parameters_b"]
        models |= dict.fromkeys(row["ids"], name)
        print(f"{name}: {parts.parameters / 1e9:.4f}B, published {row['parameters_b']}B")
    about = {"what": "Tensors of models by hub id, as engine.weigh records them", "sources": sources}
    content = {"about": about, "parameters_b": published, "models": dict(sorted(models.items())), "records": records}
    TARGET.write_text(_compact(content), encoding="utf-8")


def _sparse_rows() -> list[dict[str, Any]]:
    """Rows of the shapes with experts, one for each set of sizes."""
    shapes = json.loads((DATA / "shapes.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for model, row in shapes["models"].items():
        if row.get("experts"):
            config = _config(row)
            source = shapes["about"]["sources"][row["source"]]
            entry = {"ids": [], "source": source, "parameters_b": row["parameters_b"], "config": config}
            found.setdefault(json.dumps(config), entry)["ids"].append(model)
    return list(found.values())


def _config(row: dict[str, Any]) -> dict[str, Any]:
    experts, inner = EXPERT_KEYS.get(row["family"], QWEN_KEYS)
    return {
        "model_type": row["family"],
        "num_hidden_layers": row["layers"],
        "hidden_size": row["hidden"],
        "num_attention_heads": row["heads"],
        "num_key_value_heads": row["kv_heads"],
        "head_dim": row["head_dim"],
        "vocab_size": row["vocab"],
        "tie_word_embeddings": row["tie_embeddings"],
        "num_experts_per_tok": row["experts_per_token"],
        experts: row["experts"],
        inner: row["intermediate"],
    }


def _compact(content: dict[str, Any]) -> str:
    """JSON with one line for each group of tensors."""
    groups: dict[str, str] = {}
    for name, record in content["records"].items():
        lines = ",\n".join(f"        {json.dumps(group)}" for group in record["groups"])
        groups[f'"groups of {name}"'] = f"[\n{lines}\n      ]"
        record["groups"] = f"groups of {name}"
    text = json.dumps(content, indent=2)
    for mark, lines in groups.items():
        text = text.replace(mark, lines)
    return text + "\n"


if __name__ == "__main__":
    main()
