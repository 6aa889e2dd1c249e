"""Broken run files and command lines, through the door people use: each mistake is named once, with its place,
its cause and what to do, in both languages, with exit code 1 and without a traceback.
"""

import re
from pathlib import Path

import pytest
from errors.data_files import DATA_CASES, ROW_CASES
from errors.expected import Expected, err
from errors.run_files import BOTH, DATA, MODEL, RUN_FILES
from errors.terminal import Terminal, in_words, stoker

from stoker.facts import cards
from stoker.facts.machine import Machine
from stoker.launch import plan_inputs
from stoker.messages.en import ENGLISH


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, monkeypatch, capsys)


# ---- run files


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_broken_run_file_is_explained(terminal: Terminal, name: str) -> None:
    text, expected = RUN_FILES[name]
    terminal.write(text)
    terminal.refuses(expected, "plan", "run.yaml", "--card", "RTX4090")
    assert not (terminal.folder / "runs").exists()


def test_the_tables_are_as_large_as_promised_and_meet_every_code_of_the_run_file() -> None:
    assert len(RUN_FILES) >= 100
    assert len(DATA_CASES) + len(ROW_CASES) >= 30
    met = {one.code for _, expected in RUN_FILES.values() for one in expected if one.code.startswith("STK1")}
    elsewhere = {"STK101", "STK113", "STK117", "STK119", "STK121"}  # tests below
    elsewhere |= {"STK123", "STK124"}  # tests/unit/test_plugins.py
    elsewhere |= {"STK142", "STK143"}  # tests/unit/rundir/test_adapter_base.py
    elsewhere |= {"STK150", "STK151", "STK152"}  # tests/unit/plan/test_experts.py
    elsewhere |= {"STK153"}  # tests/unit/api/test_door.py
    elsewhere |= {"STK173"}  # tests/cli/errors/data_files.py
    elsewhere |= {f"STK{number}" for number in range(180, 188)}  # tests/unit/migrate/test_migrate.py
    elsewhere |= {"STK188"}  # tests/cli/test_mistakes.py
    assert met | elsewhere == {key for key in ENGLISH if re.fullmatch(r"STK1\d\d", key)}


def test_a_secret_is_not_repeated(terminal: Terminal) -> None:
    token = "hf_abcdefghijklmnopqrstuvwxyz"
    terminal.write(BOTH + f"train: {{seed: {token}}}\n")
    for language in ("en", "zh"):
        code, _, talk = terminal.run(language, "plan", "run.yaml")
        assert code == 1
        assert token not in talk
        assert "STK115" in talk


def test_a_long_file_name_is_no_secret(terminal: Terminal) -> None:
    terminal.write(MODEL + "data: {train: data/task-instruction-following-v2.jsonl, tokens: 1000}\n")
    code, _, talk = terminal.run("en", "plan", "run.yaml", "--card", "RTX4090")
    assert (code, talk) == (0, "")


def test_a_place_at_line_100_stays_a_place(terminal: Terminal) -> None:
    terminal.write(BOTH + "\n" * 97 + "train: {epochs: 0}\n")
    terminal.refuses([err("STK107", "run.yaml:100: train.epochs")], "plan", "run.yaml")


def test_a_hint_that_problems_share_is_printed_once_after_them(terminal: Terminal) -> None:
    terminal.write("model: “Qwen”\nname: “x”\n" + DATA + "train: {epochs: 0}\n")
    code, _, talk = terminal.run("en", "plan", "run.yaml")
    assert code == 1
    assert talk.count("[STK102]") == 2
    assert talk.count("hint: type it again") == 1
    assert talk.count("hint: ") == len({said.hint for said in in_words(talk)}) >= 2


# ---- files and recipes


def test_a_missing_run_file_names_what_is_there(terminal: Terminal) -> None:
    terminal.write(BOTH, "medical.yaml")
    terminal.refuses([err("STK101", "", "`medical`", "`medical.yaml`")], "plan", "medical")
    terminal.refuses([err("STK101", "", "`medcial.yaml`", "`medical.yaml`")], "plan", "medcial.yaml")
    terminal.refuses([err("STK101", "", "`lora_qwen2.5_7b_rank64`")], "train", "lora_qwen2.5_7b_rank46")
    terminal.refuses([err("STK101", "", "`full_qwen3_0.6b_muon`")], "plan", "no/such/folder/x.yaml")


def test_a_run_file_pasted_as_a_name_is_no_surprise(terminal: Terminal) -> None:
    terminal.refuses([err("STK101", "", "...`")], "plan", "model: " + "x" * 5000)


def test_a_folder_is_no_run_file(terminal: Terminal) -> None:
    terminal.refuses([err("STK119", "", "`.`")], "plan", ".")


def test_a_data_file_named_by_mistake_is_not_read_for_hours(terminal: Terminal) -> None:
    terminal.write("[" + '{"text": "a"},\n' * 100_000 + "{}]", "train.json")
    terminal.refuses([err("STK118", "train.json", "`model:`")], "train", "train.json")


def test_a_folder_that_cannot_be_written_to_is_no_surprise(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.write(BOTH)
    monkeypatch.setenv("STOKER_RUNS", str(terminal.write("", "a file") / "runs"))
    place = str(terminal.folder / "a file" / "runs" / "run")
    terminal.refuses([err("STK507", "", f"`{place}", "STOKER_RUNS")], "prepare", "run.yaml")


def test_a_surprise_is_shown_with_its_traceback_and_ends_with_2(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.config.run.Run.model_json_schema", lambda: 1 / 0)
    code, _, talk = terminal.run("en", "schema")
    assert code == 2
    assert "Traceback" in talk
    assert "ZeroDivisionError: division by zero  [STK900]" in talk


@pytest.mark.parametrize(("encoding", "line"), [("gbk", 2), ("utf-16", 1)])
def test_a_run_file_must_be_utf8(terminal: Terminal, encoding: str, line: int) -> None:
    (terminal.folder / "run.yaml").write_bytes(f"{MODEL}# 数据\n{DATA}".encode(encoding))
    terminal.refuses([err("STK117", f"run.yaml:{line}", "UTF-8")], "plan", "run.yaml")


def test_a_run_file_may_start_with_a_byte_order_mark_and_end_lines_as_windows_does(terminal: Terminal) -> None:
    (terminal.folder / "run.yaml").write_bytes(b"\xef\xbb\xbf" + BOTH.replace("\n", "\r\n").encode())
    code, _, talk = terminal.run("en", "plan", "run.yaml", "--card", "RTX4090")
    assert (code, talk) == (0, "")


def test_a_run_file_that_may_not_be_read_is_named(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.write(BOTH)

    def refuse(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    terminal.refuses([err("STK121", "", "`run.yaml`", "Permission denied")], "plan", "run.yaml")


# ---- command lines

SETS: dict[str, tuple[list[str], list[Expected]]] = {
    "no value": (["train.epochs"], [err("STK113", "--set train.epochs", "train.epochs=1")]),
    "no key": (["=3"], [err("STK113", "--set =3")]),
    "a hole in the path": (["train..epochs=1"], [err("STK113", "--set train..epochs=1")]),
    "two at once": (["a", "b"], [err("STK113", "--set a"), err("STK113", "--set b")]),
    "out of range": (["train.epochs=0"], [err("STK107", "--set train.epochs", ">= 1")]),
    "an unknown key": (["train.epoch=1"], [err("STK104", "--set train.epoch", "`train.epochs`")]),
    "an unknown section": (["trian.epochs=1"], [err("STK104", "--set trian", "`train`")]),
    "not YAML": (["train.epochs=[1"], [err("STK102", "--set train.epochs:1", "never closed")]),
    "an anchor": (["train.epochs=&a 3"], [err("STK114", "--set train.epochs:1")]),
    "a typo in a mapping": (["tune={method: lora, rnk: 1}"], [err("STK104", "--set tune: rnk", "`tune.rank`")]),
    "a size for a trained model": (["model.layers=3"], [err("STK105", "--set model: shape", "Qwen/")]),
    "nothing": (["data.length="], [err("STK120", "--set data.length")]),
    "a secret": (["save.store=s3://a:secret@b"], [err("STK115", "--set save.store")]),
    "beside a mistake in the file": (
        ["train.batch=x"],
        [err("STK106", "--set train.batch"), err("STK107", "run.yaml:3: train.epochs")],
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_a_mistaken_override_is_named_as_the_option_it_is(terminal: Terminal, name: str) -> None:
    sets, expected = SETS[name]
    terminal.write(BOTH + ("train: {epochs: 0}\n" if "file" in name else ""))
    arguments = [word for one in sets for word in ("--set", one)]
    terminal.refuses(expected, "plan", "run.yaml", *arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pln", "run.yaml"], ("`pln`", "`plan`")),
        (["plan"], ("`RUN` is missing", "stoker plan --help")),
        (["plan", "run.yaml", "--crad", "T4"], ("`--crad`", "`--card`")),
        (["plan", "run.yaml", "--set"], ("`--set` needs a value", "stoker plan --help")),
        (["plan", "run.yaml", "--set", "train.epochs", "1"], ("unexpected argument `1`",)),
        (["plan", "run.yaml", "--gpus", "two"], ("`two`", "`--gpus`")),
        (["prepare", "run.yaml", "--show", "many"], ("`many`", "`--show`", "an integer")),
        (["prepare", "run.yaml", "--show", "-1"], ("`-1`", "`--show`", ">= 0")),
        (["gpus", "--min-memory", "big"], ("`big`", "`--min-memory`", "a number")),
        (["logs", "x", "--lines", "-3"], ("`-3`", "`--lines`", ">= 0")),
        (["serve", "x", "--port", "99999"], ("`99999`", "`--port`", "<= 65535")),
        (["train", "run.yaml", "--weights"], ("`--weights` needs `--fork`",)),
        (["plan", "run.yaml", "--card", "T4", "--gpus", "0,"], ("`--gpus`",)),
    ],
    ids=" ".join,
)
def test_a_mistaken_command_line_is_explained(terminal: Terminal, arguments: list[str], says: tuple[str, ...]) -> None:
    terminal.write(BOTH)
    terminal.refuses([err("STK506", "", *says)], *arguments)


def test_an_unknown_key_names_the_closest_and_not_every_key(terminal: Terminal) -> None:
    terminal.write(BOTH + "train: {epoch: 1}\n")
    (said,) = terminal.refuses([err("STK104", "run.yaml:3: train.epoch")], "plan", "run.yaml")
    assert said.hint == "closest: `train.epochs`; `stoker schema` lists all keys"
    terminal.write(BOTH + "train: {xyzzy: 1}\n")
    (said,) = terminal.refuses([err("STK104", "run.yaml:3: train.xyzzy")], "plan", "run.yaml")
    assert said.hint == "`stoker schema` lists all keys"


def test_a_chinese_error_has_full_width_punctuation(terminal: Terminal) -> None:
    terminal.write(BOTH + "where: {micro: 3}\n")
    _, _, talk = terminal.run("zh", "plan", "run.yaml", "--card", "T4")
    assert talk.startswith("错误：微批次 3 ")
    assert "\n提示：把 `where.micro` 设为 16、8、4、2、1 之一" in talk


def test_stoker_alone_shows_its_help(terminal: Terminal) -> None:
    code, out, talk = terminal.run("en")
    assert (code, talk) == (0, "")
    assert "plan" in out


# ---- plans


@pytest.mark.parametrize(
    ("extra", "arguments", "expected"),
    [
        ("", ["--card", "RTX409O"], err("STK203", "--card", "RTX4090")),
        ("train:\n  batch: 16\n", ["--card", "T4", "--gpus", "3"], err("STK201", "run.yaml:4: train.batch", "15, 18")),
        ("where: {micro: 3}\n", ["--card", "T4"], err("STK207", "run.yaml:3: where.micro", "16, 8, 4, 2, 1")),
        ("", ["--gpus", "4"], err("STK208", "--set where.gpus", "4", "0")),
        ("", ["--gpus", "0,5"], err("STK208", "--set where.gpus", "2")),
        (
            "where: {strategy: zero3}\ntrain: {exact: true}\n",
            ["--card", "T4", "--gpus", "2"],
            err("STK216", "run.yaml:4: train.exact", "zero3", "fsdp2"),
        ),
        (
            "where: {strategy: zero2}\nnative:\n  deepspeed: {gradient_clipping: 2.0}\n",
            ["--card", "RTX4090", "--gpus", "2"],
            err("STK217", "run.yaml:5: native.deepspeed", "gradient_clipping", "train.clip"),
        ),
        ("where: {processes: 3}\n", ["--card", "T4"], err("STK218", "run.yaml:3: where.processes", "3")),
        (
            "native: {deepspeed: nowhere.json}\n",
            ["--card", "T4"],
            err("STK219", "run.yaml:3: native.deepspeed", "nowhere.json"),
        ),
        ("where: {precision: bf16}\n", ["--card", "T4"], err("STK210", "run.yaml:3: where.precision", "bf16", "T4")),
        (
            "where: {attention: flash_attention_2}\n",
            ["--card", "T4"],
            err("STK212", "run.yaml:3: where.attention", "T4"),
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Expected) else "",
)
def test_what_the_hardware_cannot_do_is_said_at_the_word(
    terminal: Terminal, extra: str, arguments: list[str], expected: Expected
) -> None:
    terminal.write(BOTH + extra)
    terminal.refuses([expected], "plan", "run.yaml", *arguments)


def test_an_unknown_model_is_said_at_its_line(terminal: Terminal) -> None:
    terminal.write("# mine\nmodel: nobody/nothing\n" + DATA)
    terminal.refuses([err("STK205", "run.yaml:2: model", "`nobody/nothing`")], "plan", "run.yaml", "--card", "T4")


def test_data_of_unknown_size_cannot_be_planned(terminal: Terminal) -> None:
    terminal.write(MODEL + "\ndata: {train: 'hub:owner/name'}\n")
    terminal.refuses([err("STK206", "run.yaml:3: data", "stoker prepare")], "plan", "run.yaml", "--card", "T4")


def test_data_that_is_not_there_cannot_be_planned(terminal: Terminal) -> None:
    terminal.write(MODEL + "\ndata: {train: a.jsonl}\n")
    terminal.refuses([err("STK301", "run.yaml:3: data.train", "`a.jsonl`")], "plan", "run.yaml", "--card", "T4")


def test_an_eval_share_that_leaves_nothing_to_train_cannot_be_planned(terminal: Terminal) -> None:
    terminal.write(MODEL + "data: {train: a, eval: 100%, tokens: 1000}\n")
    terminal.refuses([err("STK307", "run.yaml:2: data.eval", "100%")], "plan", "run.yaml", "--card", "T4")


@pytest.mark.parametrize(
    ("card", "count", "model", "expected"),
    [
        ("V100", 1, "Qwen/Qwen2.5-0.5B", err("STK204", "", "V100", "7.0")),
        ("T4", 1, "Qwen/Qwen2.5-7B", err("STK202", "", "T4", "qlora")),
    ],
)
def test_training_that_cannot_work_is_refused_before_it_starts(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, card: str, count: int, model: str, expected: Expected
) -> None:
    monkeypatch.setattr(plan_inputs, "machine", lambda *_: Machine.of_card(cards.find(card), count))
    monkeypatch.setattr("stoker.cli.train_command.ensure_prepared", lambda _: None)
    terminal.write(f"model: {model}\nwhere: {{gpus: all}}\n{DATA}")
    terminal.write('{"text": "a"}\n', "a.jsonl")
    terminal.refuses([expected], "train", "run.yaml")


def test_a_place_without_a_host_is_refused(terminal: Terminal) -> None:
    terminal.write(BOTH + "where: {place: colab}\n")
    terminal.refuses([err("STK710", "run.yaml:3: where.place", "colab")], "train", "run.yaml")


# ---- real processes


def test_a_process_ends_with_1_and_says_it_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MODEL + "data: {trian: a}\n")
    for language in ("en", "zh"):
        done = stoker(tmp_path, "plan", "run.yaml", STOKER_LANG=language)
        assert (done.returncode, done.stdout) == (1, "")
        (said,) = in_words(done.stderr)
        assert (said.code, said.where) == ("STK104", "run.yaml:2: data.trian")


def test_a_console_that_cannot_show_chinese_shows_something(tmp_path: Path) -> None:
    settings = {"STOKER_LANG": "zh", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = stoker(tmp_path, "plan", "lora_qwen2.5_7b_rank64", "--card", "RTX4090", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout
