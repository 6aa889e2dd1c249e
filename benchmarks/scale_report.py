"""Writes the tables of docs/concepts/scale.* in both languages, between marks; sentences around them are by hand."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner_report import filled, table

PAGES = {"en": "scale.md", "zh": "scale.zh.md"}
WORDS = {
    "per step, of the busiest rank": "每步，最忙的 rank",
    "ranks": "rank 数",
    "{strategy}, {ranks} ranks": "{strategy}，{ranks} 个 rank",
    "control collectives": "控制组集合通信",
    "their bytes": "其字节数",
    "sums of gradients and losses": "梯度与损失的求和",
    "bytes set in the store": "写入 store 的字节",
    "files opened": "打开的文件",
    "system calls on files": "文件系统调用",
    "on sockets": "套接字系统调用",
    "not traced": "未跟踪",
    "batch": "批次",
    "rows": "按行",
    "grouped": "按长度分组",
    "tree": "求和树",
    "sequences": "序列",
    "shards": "分片",
    "opened in": "打开",
    "first step": "第一步",
    "slowest of 51 steps": "51 步中最慢",
    "memory": "内存",
    "checkpoint": "检查点",
    "training stands still": "训练停顿",
    "write and commit": "写入并提交",
    "nodes": "节点",
    "n": "n",
    "median error": "误差中位数",
    "p90": "p90",
    "bias": "偏差",
    "inside the interval": "落在区间内",
    "several, in all": "多节点合计",
    "several, pretrain": "多节点，预训练",
    "several, lora": "多节点，LoRA",
    "several, tensor or pipeline parallel": "多节点，张量或流水线并行",
    "16 to 64": "16 至 64",
    "run": "运行",
    "GPUs": "GPU 数",
    "fits": "放得下",
    "yes": "是",
    "likely": "多半",
    "tight": "勉强",
    "no": "否",
    "GiB per GPU": "每卡 GiB",
    "tokens/s": "词元/秒",
    "hours for 1 B tokens": "10 亿词元所需小时",
    "USD": "美元",
    "sending": "通信",
    "how": "方式",
    "gather": "汇集",
    "to main memory, at best": "拷到内存，最快",
    "written at 0.5 / 2 / 6 GB/s": "以 0.5 / 2 / 6 GB/s 写入",
}
"""The tables' words in Chinese."""

Say = Callable[[str], str]


def write(concepts: Path, told: dict[str, Any]) -> None:
    """Both pages."""
    for name in PAGES.values():
        write_page(concepts / name, told)


def write_page(page: Path, told: dict[str, Any]) -> None:
    """One page."""
    chinese = page.name == PAGES["zh"]
    tables = _blocks(told, lambda word: WORDS[word] if chinese else word)
    page.write_text(filled(page.read_text(encoding="utf-8"), tables), encoding="utf-8")


def _blocks(told: dict[str, Any], say: Say) -> dict[str, str]:
    made = {
        "control": _control,
        "items": _items,
        "index": _index,
        "checkpoint": _checkpoint,
        "published": _published,
        "planner": _planner,
    }
    tables = {name: make(told[name], say) for name, make in made.items() if name in told}
    return tables | ({"saves": _saves(told["planner"], say)} if "planner" in told else {})


def _control(told: dict[str, Any], say: Say) -> str:
    heads = ["control collectives", "their bytes", "sums of gradients and losses", "bytes set in the store",
             "files opened", "system calls on files", "on sockets"]  # fmt: skip
    rows = []
    for name, one in told.items():
        if name == "steps":
            continue
        strategy, ranks = name.split()
        group, data, calls = one["control"], one["data"], one["system_calls"]
        sums = sum(count for key, count in data.items() if key not in ("bytes", "all_gather"))
        spoken = sum(count for key, count in group.items() if key != "bytes")
        traced = [say("not traced")] * 2 if calls is None else _by_kind(calls)
        cells = [spoken, group.get("bytes", 0), sums, one["store_bytes"], one["main"].get("open", 0)]
        rows.append(
            [
                say("{strategy}, {ranks} ranks").format(strategy=strategy, ranks=ranks),
                *(f"{cell:g}" for cell in cells),
                *traced,
            ]
        )
    return table([say("per step, of the busiest rank"), *map(say, heads)], rows)


def _by_kind(calls: dict[str, float]) -> list[str]:
    """Calls on files, and on sockets: of the kinds that are traced, gloo uses these."""
    used = re.compile("writev|readv|send|recv")
    sockets = sum(count for name, count in calls.items() if used.match(name))
    return [f"{sum(calls.values()) - sockets:.0f}", f"{sockets:.0f}"]


def _items(told: dict[str, Any], say: Say) -> str:
    batches = sorted({int(name.split()[1]) for name in told if " " in name})
    kinds = ("rows", "grouped", "tree")
    rows = [[f"{batch:,}", *(f"{1000 * told[f'{kind} {batch}']:.1f} ms" for kind in kinds)] for batch in batches]
    return table([say("batch"), *map(say, kinds)], rows)


def _index(told: dict[str, Any], say: Say) -> str:
    seconds = [f"{told[key]:.2f} s" for key in ("open_seconds", "first_step_seconds", "slowest_step_seconds")]
    cells = [f"{told['sequences']:,}", f"{told['shards']:,}", *seconds, f"{told['megabytes']:.0f} MB"]
    heads = ("sequences", "shards", "opened in", "first step", "slowest of 51 steps", "memory")
    return table([say(word) for word in heads], [cells])


def _checkpoint(told: list[dict[str, Any]], say: Say) -> str:
    keys = ("stall_seconds", "write_seconds")
    rows = [[f"{one['megabytes']:,} MB", str(one["ranks"]), *(f"{one[key]:.2f} s" for key in keys)] for one in told]
    return table([say(word) for word in ("checkpoint", "ranks", "training stands still", "write and commit")], rows)


def _published(told: dict[str, Any], say: Say) -> str:
    rows = [
        [
            say(name) if name in WORDS else name,
            str(one["n"]),
            *(f"{100 * one[key]:.1f} %" for key in ("median", "p90")),
            f"{100 * one['bias']:+.1f} %",
            f"{100 * one['covered']:.0f} %",
        ]
        for name, one in told.items()
    ]
    return table([say(word) for word in ("nodes", "n", "median error", "p90", "bias", "inside the interval")], rows)


def _planner(told: dict[str, Any], say: Say) -> str:
    heads = ["run", "GPUs", "fits", "how", "GiB per GPU", "tokens/s", "sending", "hours for 1 B tokens", "USD"]
    rows = []
    for one in told["rows"]:
        run = f"{one['model']} {one['method']}, {one['card']}"
        memory = _range(one["memory_gib"], ".0f")
        if one["fits"] == "no":
            rows.append([run, str(one["devices"]), say("no"), "", memory, "", "", "", ""])
            continue
        share = f"{100 * one['communication_share']:.0f} %"
        cells = [memory, _range(one["tokens_per_second"], ",.0f"), share, _range(one["hours"], ".3g")]
        paid = _range(one["usd"], ",.0f") if one["usd"] else "-"
        how = f"{one['strategy']}, micro {one['micro']}"
        rows.append([run, str(one["devices"]), say(one["fits"]), how, *cells, paid])
    return table([say(word) for word in heads], rows)


def _range(of: list[float], form: str) -> str:
    expected, low, high = (f"{each:{form}}" for each in of)
    return f"{expected} ({low}-{high})"


def _saves(told: dict[str, Any], say: Say) -> str:
    heads = ["run", "GPUs", "checkpoint", "gather", "to main memory, at best", "written at 0.5 / 2 / 6 GB/s"]
    rows = [
        [
            f"{one['model']} full, {one['card']}",
            str(one["devices"]),
            f"{one['gigabytes']:,} GB",
            *(f"{one[key]:,.1f} s" for key in ("gather_seconds", "host_seconds")),
            " / ".join(f"{seconds:,} s" for seconds in one["write_seconds"].values()),
        ]
        for one in told["saves"]
    ]
    return table([say(word) for word in heads], rows)
