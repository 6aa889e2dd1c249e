"""Weighs the catalogue models that no formula counts, and writes `facts/data/model_parts.json`.

    python tools/weigh_catalogue.py            weigh all (needs torch, transformers, peft, bitsandbytes; minutes)
    python tools/weigh_catalogue.py --new      only those that have no record yet

Their sizes: `tools/catalogue_configs.json`, and the rows of `facts/data/shapes.json` with experts.
"""

import json
import sys
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
    records = json.loads(TARGET.read_text(encoding="utf-8"))["records"] if "--new" in sys.argv else {}
    for row in rows:
        name = row["ids"][0]
        if name not in records:
            config = dict(row["config"])
            parts = weigh.weigh(AutoConfig.for_model(config.pop("model_type"), **config))
            records[name] = model_parts.to_json(parts)
            print(f"{name}: {parts.parameters / 1e9:.4f}B, published {row['published']}", flush=True)
            _write([row for row in rows if row["ids"][0] in records], records)
    _write(rows, records)


def _write(rows: list[dict[str, Any]], records: dict[str, Any]) -> None:
    """The records of these rows, with what is published about each model."""
    models = {model: row["ids"][0] for row in rows for model in row["ids"]}
    sources = {row["ids"][0]: row["source"] for row in rows}
    published = {row["ids"][0]: {"weights": row["published"], "by": row["published_by"]} for row in rows}
    content = {
        "about": {"what": "Tensors of models by hub id, as engine.weigh records them", "sources": sources},
        "published": published,
        "models": dict(sorted(models.items())),
        "records": {row["ids"][0]: dict(records[row["ids"][0]]) for row in rows},
    }
    TARGET.write_text(_compact(content), encoding="utf-8")


def _sparse_rows() -> list[dict[str, Any]]:
    """Rows of the shapes with experts, one for each set of sizes."""
    shapes = json.loads((DATA / "shapes.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for model, row in shapes["models"].items():
        if row.get("experts"):
            config = _config(row)
            entry = {"ids": [], "config": config, **_published(row, shapes["about"]["sources"])}
            found.setdefault(json.dumps(config), entry)["ids"].append(model)
    return list(found.values())


def _published(row: dict[str, Any], sources: dict[str, str]) -> dict[str, str]:
    """Where a row's sizes are from, and how many weights are published by whom."""
    source = sources[row["source"]]
    if "published" in row:
        return {"source": source, "published": row["published"], "published_by": sources[row["published_by"]]}
    return {"source": source, "published": f"{row['parameters_b']}B", "published_by": source}


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
    """JSON with one line for each model, record and group of tensors."""
    words = ("about", "published", "models")
    parts = [f"{json.dumps(word)}: {json.dumps(content[word], indent=0)}" for word in words]
    records = []
    for name, record in content["records"].items():
        head = json.dumps({**record, "groups": []}, separators=(",", ":"))
        lines = ",\n".join(json.dumps(group, separators=(",", ":")) for group in record["groups"])
        records.append(f"{json.dumps(name)}: " + head.replace('"groups":[]', f'"groups":[\n{lines}\n]'))
    return "{\n" + ",\n".join(parts) + ',\n"records": {\n' + ",\n".join(records) + "\n}\n}\n"


if __name__ == "__main__":
    main()
