"""Writes the figures of docs/concepts/planner-accuracy.* in both languages: tables between marks, and scatter plots.

The sentences around the tables are written by hand in the pages; only what stands between marks is replaced.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGES = {"en": "planner-accuracy.md", "zh": "planner-accuracy.zh.md"}
PLOTS = {"memory": ("planner-memory.svg", 1e9, "GB"), "speed": ("planner-speed.svg", 1.0, "tokens/s")}
COLOURS = {"single full": "#1b6ca8", "single lora": "#2a9d4b", "single qlora": "#c77700", "sharded": "#8e44ad",
           "replicated": "#7f8c8d", "split": "#c0392b"}  # fmt: skip
SIZE, EDGE = 520, 60

WORDS = {
    "what": "什么",
    "median": "中位数",
    "bias": "偏差",
    "inside 90 % interval": "落在 90 % 区间内",
    "bar": "要求",
    "met": "达到",
    "yes": "是",
    "**no**": "**否**",
    "rows": "行数",
    "source left out": "不含该来源",
    "group": "组",
    "why not compared": "不能比较的原因",
    "row": "行",
    "source": "来源",
    "model": "模型",
    "error": "误差",
    "measured": "实测",
    "predicted": "预测",
    "in sample": "样本内",
    "all graded rows": "所有 A/B 行",
    "ran, said to fit": "能运行，判为放得下",
    "ran, said not to fit": "能运行，判为放不下",
    "out of memory, said not to fit": "显存不足，判为放不下",
    "out of memory, said to fit": "显存不足，判为放得下",
    "out of memory, whole interval fits": "显存不足，但整个区间都放得下",
    "ran: share said to fit (recall)": "能运行的行：判为放得下的比例（召回率）",
    "out of memory: share said not to fit (recall)": "显存不足的行：判为放不下的比例（召回率）",
    "right": "判对",
    "right if always said to fit": "若一律判为放得下，判对",
    "memory, one GPU, grade A/B": "显存，单卡，A/B 级",
    "memory, sharded, grade A/B": "显存，多卡，A/B 级",
    "memory, one GPU, fixed lengths only, grade A/B": "显存，单卡，仅固定长度，A/B 级",
    "memory, sharded, without tensor/pipeline rows, grade A/B": "显存，多卡，不含张量/流水线并行，A/B 级",
    "speed, grade A": "速度，A 级",
    "speed, grade B": "速度，B 级",
    "memory": "显存",
    "speed": "速度",
    "fit": "放得下与否",
    "method, strategy, card": "方法、策略、显卡类别",
    "sources": "来源",
    "borrowed": "借入",
    "width": "宽度（上限 / 下限）",
    "all": "全部",
    "method, strategy": "方法、策略",
    "; ": "；",
    "p90": "p90",
    "ran out of memory but called sure": "显存不足却判为一定放得下",
    "ran and called sure": "能运行且判为一定放得下",
    "ran, with 10 % more room than expected need": "能运行，且比预计需要多出 10 %",
    "ran, whole interval fits": "能运行，且整个区间都放得下",
    "memory, all": "显存，全部",
    "memory, one GPU": "显存，单卡",
    "memory, one GPU, rows that state everything": "显存，单卡，写明一切的行",
    "memory, one GPU, everything and its meter": "显存，单卡，连测量工具也写明的行",
    "memory, DDP, FSDP, ZeRO on <= 8 GPUs": "显存，DDP、FSDP、ZeRO，不超过 8 卡",
    "memory, every source alike": "显存，各来源权重相同",
    "speed, every source alike": "速度，各来源权重相同",
    "speed, all": "速度，全部",
    "speed, one GPU": "速度，单卡",
    "speed, DDP, FSDP, ZeRO on <= 8 GPUs": "速度，DDP、FSDP、ZeRO，不超过 8 卡",
    "low": "下限",
    "high": "上限",
    ", ": "，",
    ": ": "：",
    "trains other tensors than full, LoRA or QLoRA": "训练的张量既不是全参数，也不是 LoRA 或 QLoRA",
    "optimizer or variant not described": "估算模型不含这种优化器或变体",
    "an encoder, not a decoder": "是编码器，不是解码器",
    "activation offload is not described": "估算模型不含激活值卸载",
    "no CUDA card": "不是 CUDA 显卡",
    "weights not described": "估算模型不含这种权重",
    "micro batch not stated": "没有写明微批次",
    "parallelism not stated": "没有写明并行方式",
    "card not in the catalogue, or several": "目录中没有这种显卡，或用了多种显卡",
    "shape of the model not known": "不知道模型的结构",
    "latent attention (MLA) is not described": "估算模型不含潜在注意力（MLA）",
    "not PyTorch": "不是 PyTorch",
    "parallel sizes do not divide the cards": "并行数不能整除卡数",
    "the allocator's cache was emptied at every step (measurements before 2026)": "每步清空分配器缓存（2026 年前实测）",
    "power-limited card, limit not stated": "显卡限制了功耗，但没有写明上限",
    "arithmetic not stated": "没有写明计算精度",
    "parallel sizes not stated": "没有写明并行数",
    "recomputation not stated": "没有写明是否重算",
    "card not stated": "没有写明显卡",
    "layers on several cards in turn": "各层依次放在多张卡上",
    "length not stated": "没有写明长度",
}
"""The tables' words in Chinese."""


def write(docs: Path, told: dict[str, Any], pairs: list[Any], bounds: dict[str, Any]) -> None:
    """Both pages and the plots."""
    concepts = docs / "concepts"
    for figure, (name, unit, label) in PLOTS.items():
        chosen = [pair for pair in pairs if pair.figure == figure and pair.grade in ("A", "B")]
        (concepts / name).write_text(scatter(chosen, unit, label), encoding="utf-8")
    for language, name in PAGES.items():
        page = concepts / name
        page.write_text(filled(page.read_text(encoding="utf-8"), blocks(told, bounds, language)), encoding="utf-8")


def filled(text: str, tables: dict[str, str]) -> str:
    """A page with the tables of this run between its marks."""
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert mark.search(text), f"the page has no mark {name}"
        text = mark.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text)
    return text


def blocks(told: dict[str, Any], bounds: dict[str, Any], language: str) -> dict[str, str]:
    """Every table of the page, by the name of its mark."""

    def say(word: str) -> str:
        return WORDS.get(word, word) if language == "zh" else word

    return {
        "relied": _relied(told, say),
        "bars": _bars(told, say),
        "coverage": _coverage(told, say),
        "fits": _fits(told, say),
        "limits": _limits(told["limits"], say),
        **{f"{figure}-{cut}": _cut(told["groups"][figure][cut], say) for figure in PLOTS for cut in ("kind", "source")},
        **{f"{figure}-worst": _worst(told["worst"][figure], PLOTS[figure], say) for figure in PLOTS},
        "intervals": _intervals(bounds, say),
        "unmapped": _unmapped(told["unmapped"], say),
    }


def table(heads: list[str], rows: list[list[str]]) -> str:
    line = "|".join(["---"] + ["--:"] * (len(heads) - 1))
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, *rows]).replace("\n", f"\n|{line}|\n", 1)


Say = Callable[[str], str]


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}".replace("%", " %")


def _bars(told: dict[str, Any], say: Say) -> str:
    without = {bar["what"]: bar for bar in told.get("left_out", {}).get("bars", [])}
    rows = []
    for bar in told["bars"]:
        for one, where in ((bar, "in sample"), (without.get(bar["what"]), "source left out")):
            if one is None:
                continue
            limit = " / ".join(_percent(value) for value in one["bar"] if value)
            figures = [str(one["n"]), _percent(one["median"]), _percent(one["p90"]), _percent(one["bias"], "+")]
            met = say("yes") if one["met"] else say("**no**")
            rows.append([say(", ").join([say(bar["what"]), say(where)]), *figures, limit, met])
    return table([say(word) for word in ("what", "n", "median", "p90", "bias", "bar", "met")], rows)


def _relied(told: dict[str, Any], say: Say) -> str:
    """What a user may rely on: each line with its bars, and whether they are reached."""
    rows = []
    for one in told["left_out"]["relied"]:
        figures = [str(one["n"]), str(one["sources"]), *(_percent(one[key]) for key in ("median", "p90", "covered"))]
        bars = [_bar(name, bar, say) for name, bar in one["bar"].items()]
        met = all(_reached(one[name], bar) for name, bar in one["bar"].items())
        said = (say("yes") if met else say("**no**")) if bars else ""
        rows.append([say(one["what"]), *figures, f"{one['width']:.2f}", say(", ").join(bars), said])
    for figure, by_source in told["left_out"]["by_source"].items():
        inside = [own["covered"] for own in by_source.values()]
        counts = [str(sum(own["n"] for own in by_source.values())), str(len(inside))]
        mean = _percent(sum(inside) / len(inside))
        rows.append([say(f"{figure}, every source alike"), *counts, "", "", mean, "", "", ""])
    fits = told["fits"]
    met = not fits["oom_sure"] and fits["ran_sure"] >= fits["sure_bar"]
    sure = {
        "ran out of memory but called sure": str(len(fits["oom_sure"])),
        "ran and called sure": _percent(fits["ran_sure"]),
    }
    name = say("; ").join(say(": ").join([say(what), figure]) for what, figure in sure.items())
    bar = say("; ").join(["0", f">= {_percent(fits['sure_bar'])}"])
    rows.append([name, str(fits["n"]), *[""] * 5, bar, say("yes") if met else say("**no**")])
    heads = ("source left out", "n", "sources", "median", "p90", "inside 90 % interval", "width", "bar", "met")
    return table([say(word) for word in heads], rows)


def _bar(name: str, bar: Any, say: Say) -> str:
    if name == "covered":
        return f"{_percent(bar[0])}-{_percent(bar[1])}"
    return f"{say(name)} <= {bar:.1f}" if name == "width" else f"{say(name)} <= {_percent(bar)}"


def _reached(value: float, bar: Any) -> bool:
    return bool(bar[0] <= value <= bar[1] if isinstance(bar, list | tuple) else value <= bar)


def _coverage(told: dict[str, Any], say: Say) -> str:
    """Coverage and width, overall and by class, of sources that were left out."""
    without = told["left_out"]
    rows = []
    for figure, own in without["coverage"].items():
        named = {"all": own, **without["classes"][figure]}
        rows += [
            [say(": ").join([say(figure), say(name)]), str(one["n"]), str(one["sources"]), _percent(one["covered"]),
             f"{one['width']:.2f}"]
            for name, one in named.items()
        ]  # fmt: skip
    heads = ("method, strategy", "n", "sources", "inside 90 % interval", "width")
    return table([say(word) for word in heads], rows)


def _fits(told: dict[str, Any], say: Say) -> str:
    own = told["fits"]
    named = {
        "ran, said to fit": own.get("fits said fits", 0),
        "ran, said not to fit": own.get("fits said oom", 0),
        "out of memory, said not to fit": own.get("oom said oom", 0),
        "out of memory, said to fit": own.get("oom said fits", 0),
        "out of memory, whole interval fits": len(own["oom_sure"]),
        "ran, whole interval fits": _percent(own["ran_sure"]),
        "ran, with 10 % more room than expected need": _percent(own["ran_spare"]),
        "ran: share said to fit (recall)": _percent(own["recall_ran"]),
        "out of memory: share said not to fit (recall)": _percent(own["recall_oom"]),
        "right": _percent(own["right"]),
        "right if always said to fit": _percent(own["always_fits"]),
    }
    return table([say("what"), say("rows")], [[say(name), str(value)] for name, value in named.items()])


def _limits(own: dict[str, Any], say: Say) -> str:
    rows = [[f"`{name}`", _percent(error, "+")] for name, error in own["errors"].items()]
    return table([say("row"), say("error")], rows)


def _cut(groups: dict[str, Any], say: Say) -> str:
    rows = [
        [name, str(own["n"]), _percent(own["median"]), _percent(own["p90"]), _percent(own["bias"], "+"),
         _percent(own.get("covered"))]
        for name, own in groups.items()
    ]  # fmt: skip
    return table([say(word) for word in ("group", "n", "median", "p90", "bias", "inside 90 % interval")], rows)


def _worst(rows: list[dict[str, Any]], plot: tuple[str, float, str], say: Say) -> str:
    _, unit, label = plot
    told = [
        [f"`{row['id']}`", row["source"].split(" ")[0], row["model"], f"{row['measured'] / unit:,.1f}",
         f"{row['predicted'] / unit:,.1f}", _percent(row["error"], "+")]
        for row in rows
    ]  # fmt: skip
    heads = ["row", "source", "model", "measured", "predicted", "error"]
    return table([say(word) + (f" ({label})" if word in ("measured", "predicted") else "") for word in heads], told)


def _intervals(bounds: dict[str, Any], say: Say) -> str:
    rows = [
        [say(": ").join([say(figure), name]), str(own["n"]), str(own["sources"]), _percent(own["borrowed"]),
         f"{own['low']:.2f}", f"{own['high']:.2f}", f"{own['high'] / own['low']:.2f}"]
        for figure, groups in bounds.items()
        for name, own in groups.items()
        if name.endswith(" any")
    ]  # fmt: skip
    heads = ("method, strategy, card", "n", "sources", "borrowed", "low", "high", "width")
    return table([say(word) for word in heads], rows)


def _unmapped(reasons: dict[str, dict[str, list[str]]], say: Say) -> str:
    counted = [(figure, *one) for figure, named in reasons.items() for one in shortened(named)]
    rows = [[say(": ").join([say(figure), say(reason)]), str(count)] for figure, reason, count in counted]
    return table([say("why not compared"), say("rows")], rows)


def shortened(named: dict[str, list[str]]) -> list[tuple[str, int]]:
    """Reasons with their number of rows, most first; those that differ only behind a colon are one."""
    counts: Counter[str] = Counter()
    for reason, ids in named.items():
        counts[reason.split(":")[0]] += len(ids)
    return counts.most_common()


# The plots.


def scatter(pairs: list[Any], unit: float, label: str) -> str:
    """Measured against predicted on two logarithmic axes, with lines at equal, 10 % above and 10 % below."""
    values = [value / unit for pair in pairs for value in (pair.measured, pair.predicted)]
    low, high = min(values) / 1.2, max(values) * 1.2

    def at(value: float) -> float:
        return EDGE + (SIZE - 2 * EDGE) * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE + 130} {SIZE}" font-family="sans-serif"',
        f' font-size="12"><rect width="{SIZE + 130}" height="{SIZE}" fill="#ffffff"/>',
        *_axes(low, high, at, label),
        *(_line(low, high, at, factor) for factor in (1.0, 1.1, 1 / 1.1)),
    ]
    for pair in pairs:
        x, y = at(pair.measured / unit), SIZE - at(pair.predicted / unit)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLOURS[_kind(pair)]}" fill-opacity="0.6"/>')
    parts += _legend(sorted({_kind(pair) for pair in pairs}))
    return "\n".join([*parts, "</svg>", ""])


def _kind(pair: Any) -> str:
    name = f"{pair.of.strategy} {pair.of.method}".replace("pretrain", "full").replace("int8", "qlora")
    return name if pair.of.strategy == "single" else str(pair.of.strategy)


def _axes(low: float, high: float, at: Callable[[float], float], label: str) -> list[str]:
    ticks = [tick for power in range(-3, 9) for digit in (1, 2, 5) if low < (tick := digit * 10.0**power) < high]
    if len(ticks) > 10:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
    end = SIZE - EDGE
    parts = [f'<path d="M{EDGE} {EDGE}V{end}H{end}" fill="none" stroke="#444"/>']
    for tick in ticks:
        place = at(tick)
        parts.append(f'<text x="{place:.0f}" y="{end + 16}" text-anchor="middle">{tick:,.4g}</text>')
        parts.append(f'<text x="{EDGE - 6}" y="{SIZE - place + 4:.0f}" text-anchor="end">{tick:,.4g}</text>')
    parts.append(f'<text x="{SIZE / 2}" y="{SIZE - 18}" text-anchor="middle">measured ({label})</text>')
    parts.append(f'<text x="{EDGE}" y="{EDGE - 12}">predicted ({label})</text>')
    return parts


def _line(low: float, high: float, at: Callable[[float], float], factor: float) -> str:
    start = (low, low * factor) if factor >= 1 else (low / factor, low)
    end = (high / max(1, factor), high * min(1, factor))
    dash = "" if factor == 1 else ' stroke-dasharray="4 4"'
    ends = " ".join(f"{'ML'[i]}{at(x):.1f} {SIZE - at(y):.1f}" for i, (x, y) in enumerate((start, end)))
    return f'<path d="{ends}" stroke="#999"{dash}/>'


def _legend(kinds: list[str]) -> list[str]:
    parts = []
    for place, kind in enumerate(kinds):
        y = EDGE + 20 * place
        parts.append(f'<circle cx="{SIZE - 30}" cy="{y}" r="4" fill="{COLOURS[kind]}"/>')
        parts.append(f'<text x="{SIZE - 20}" y="{y + 4}">{kind}</text>')
    return parts
