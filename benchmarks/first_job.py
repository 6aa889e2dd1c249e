"""The first job of one's own by four commands (`init`, `train`, `export`, `serve`), on a messy file, with the defaults.

300 rows of ShareGPT in English and Chinese: support tickets and one of eight categories, ten of them broken, fifteen
twice, five far too long. SmolLM2-135M-Instruct learns the categories; 60 other tickets are asked of the base before
and of the endpoint after. The gate is `export`'s. Usage: python benchmarks/first_job.py [--folder FOLDER] [--out FILE]
"""

import argparse
import datetime
import json
import os
import random
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import smollm2

SEED, HELD_OUT, ROWS = 7, 60, 300
ANSWERS = ("1", "smollm2", "tickets.jsonl", "", "2")
"""To the questions of `init`: fine-tune, the model, the data, here, a full training."""
BAR = 0.8
THINGS = {
    "en": ("headphones", "kettle", "laptop", "phone case", "camera", "desk lamp", "printer", "keyboard", "tablet"),
    "zh": ("耳机", "水壶", "笔记本电脑", "手机壳", "相机", "台灯", "打印机", "键盘", "平板"),
}
TICKETS = {
    "en": {
        "billing": ("I was charged twice for {p}", "The invoice for {p} shows the wrong amount"),
        "shipping": ("My {p} has not arrived after {n} days", "The courier left my {p} at the wrong address"),
        "refund": ("I want my money back for the {p}", "Please refund my {p}, order {n}"),
        "login": ("I cannot sign in to see my {p}", "The login page rejects my password for order {n}, {p}"),
        "defect": ("The {p} broke after {n} days", "My {p} does not turn on"),
        "cancel": ("Please cancel order {n} for the {p}", "I no longer want the {p}, stop the order"),
        "privacy": ("Delete all personal data about me and my {p}", "Who can see the data my {p} collects"),
        "praise": ("Thank you, the {p} is wonderful", "Great service, my {p} came in {n} days"),
    },
    "zh": {
        "billing": ("{p}被重复扣款了", "为什么买{p}扣了我{n}元"),
        "shipping": ("我的{p}{n}天了还没到", "快递把{p}送错地址了"),
        "refund": ("我要退{p}的钱", "请给订单{n}的{p}退款"),
        "login": ("买了{p}之后登录不了账号", "忘记密码了，要看订单{n}的{p}"),
        "defect": ("{p}用了{n}天就坏了", "我的{p}开不了机"),
        "cancel": ("请取消订单{n}的{p}", "不想要{p}了，发货前取消订单"),
        "privacy": ("请删除我和{p}的全部个人数据", "{p}收集的数据谁能看到"),
        "praise": ("谢谢，{p}非常好用", "服务很棒，{p}{n}天就到了"),
    },
}
BROKEN = (
    '{"conversations": [{"from": "human", "value": "Ticket: half a row',
    '{"conversations": [{"from": "human", "value": "Ticket: no answer"}]}',
    '{"conversations": [{"from": "human", "value": "Ticket: empty"}, {"from": "gpt", "value": ""}]}',
    '{"conversations": [{"from": "human", "value": "工单：空"}, {"from": "gpt", "value": ""}]}',
    '{"conversation": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "praise"}]}',
    '{"conversations": [{"from": "human"}, {"from": "gpt", "value": "praise"}]}',
    "{'conversations': [{'from': 'human', 'value': 'x'}, {'from': 'gpt', 'value': 'praise'}]}",
    '{"conversations": null}',
    '{"conversations": []}',
    "not json at all",
)


def make_data(folder: Path) -> list[dict[str, str]]:
    """Write the messy file; the questions that are kept apart."""
    drawn = random.Random(SEED)
    made: dict[str, str] = {}
    while len(made) < HELD_OUT + ROWS - 30:
        language = drawn.choice(("en", "zh"))
        category = drawn.choice(list(TICKETS[language]))
        words = {"p": drawn.choice(THINGS[language]), "n": drawn.randint(2, 900)}
        text = drawn.choice(TICKETS[language][category]).format(**words)
        made[f"Ticket: {text}\nCategory?" if language == "en" else f"工单：{text}\n类别？"] = category
    pairs = list(made.items())
    lines = [_line(*pair) for pair in pairs[HELD_OUT:]]
    lines += drawn.sample(lines, 15)
    lines += [_line(question + "\nthe log says nothing 日志没有用 " * 3000, answer) for question, answer in pairs[-5:]]
    lines += BROKEN
    drawn.shuffle(lines)
    assert len(lines) == ROWS
    (folder / "tickets.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [{"prompt": question, "completion": answer} for question, answer in pairs[:HELD_OUT]]


def _line(question: str, answer: str) -> str:
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return json.dumps({"conversations": turns}, ensure_ascii=False)


def measure(folder: Path) -> dict[str, Any]:
    from stoker.rundir import artifacts, layout

    rows = make_data(folder)
    base = smollm2.fetch_model(folder / "smollm2")
    minutes: dict[str, float] = {}
    os.chdir(folder)
    for command in (("init", "my.yaml"), ("train", "my.yaml"), ("export", "my")):
        if command[0] == "init" and Path("my.yaml").exists():
            continue
        began = time.monotonic()
        given = "\n".join(ANSWERS) + "\n" if command[0] == "init" else None
        smollm2.stoker(*command, given=given)
        minutes[command[0]] = round((time.monotonic() - began) / 60, 1)
    run_dir = layout.find("my")
    found = {
        "before": smollm2.count(smollm2.ask_folder(base, rows), rows),
        "served": smollm2.count(smollm2.ask_served(run_dir, rows), rows),
    }
    gate = artifacts.parity(run_dir)["export"]
    return {"commands": 4, "minutes": minutes, "questions": len(rows), "right": found, "parity": gate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep data, model and run here; what is finished is kept")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    out = options.out.resolve() if options.out else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["STOKER_RUNS"] = str(folder / "runs")
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": {name: version(name) for name in ("stoker", "torch", "transformers", "peft")},
            "seed": SEED,
            "bar": BAR,
            **measure(folder),
        }
    text = json.dumps(report, indent=1) + "\n"
    if out:
        out.write_text(text, encoding="utf-8")
    print(text)
    sys.exit(report["right"]["served"] < BAR * report["questions"])


if __name__ == "__main__":
    main()
