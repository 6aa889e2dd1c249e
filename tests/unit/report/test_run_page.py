"""The page of a run: complete in every state, one file without an address, no secret, no path of the home folder."""

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import reported_run

from stoker.report import next_commands, page_sections, plan_check, run_history, run_page
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report, Split

VOID = {"meta", "br", "path"}
SECRET = "tok-<31415>&'92653"


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")


class Page(HTMLParser):
    """Elements that were opened and not closed, texts, and what asks for another file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.asks: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.asks += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.asks += [tag] if tag in ("script", "iframe", "object", "embed", "link", "img") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def words(text: str) -> str:
    return " ".join(" ".join(Page(text).texts).split())


@pytest.mark.parametrize("end", ["done", "stopped", "failed", None])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_is_whole_and_asks_for_nothing(
    tmp_path: Path, end: str | None, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    text = run_page.page(reported_run.make(tmp_path, end=end))
    page = Page(text)
    assert (page.open, page.wrong, page.asks) == ([], [], [])
    assert not re.search(r"https?:|url\(|@import|//\w", text)
    assert text.count("<figure") == 4
    assert "medical" in "".join(page.texts)


def test_what_asks_for_another_file_is_found() -> None:
    assert Page('<img src="x"><a href="y">z</a><script>1</script>').asks
    assert Page("<p><b></p>").wrong


def test_a_page_of_a_run_that_was_never_started_says_so(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path, end=None)
    run_dir.events_file.unlink()
    run_dir.plan_file.unlink()
    said = words(run_page.page(run_dir))
    assert "No step was done yet" in said
    assert "stoker train" in said


@pytest.mark.parametrize("name", ["events.jsonl", "plan.json"])
def test_damaged_files_of_a_stranger_do_not_end_in_a_traceback(tmp_path: Path, name: str) -> None:
    run_dir = reported_run.make(tmp_path)
    strange = [{"event": kind} for kind in run_history.HAPPENINGS] + [{"event": "sample"}, {"event": "task", "rows": 0}]
    strange += [
        {"event": kind, "at": "2026-11-15T08:00:00+00:00"} for kind in (*run_history.HAPPENINGS, "evaluated", "judged")
    ]
    text = "\n".join(json.dumps(one) for one in strange) if name == "events.jsonl" else "{"
    (run_dir.path / name).write_text(text, encoding="utf-8")
    assert "medical" in run_page.page(run_dir)


def test_a_win_rate_is_on_the_page(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    letters = {"characters_before": 1, "characters_after": 1, "cut_before": 0, "cut_after": 0}
    counts = {
        "wins": 3,
        "ties": 0,
        "losses": 1,
        "same": 0,
        "contradicted": 0,
        "unjudged": 0,
        "rate": 0.75,
        "low": 0.3,
        "high": 0.95,
    }
    event = {"event": "judged", "at": "2026-11-15T08:00:00+00:00", "judge": "reward_<b>", **counts, **letters}
    with run_dir.events_file.open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    text = run_page.page(run_dir)
    assert "win rate 75.0%" in words(text)
    assert "reward_<b>" not in text


def test_what_the_model_says_is_text_and_never_markup(tmp_path: Path) -> None:
    text = run_page.page(reported_run.make(tmp_path))
    assert reported_run.HOSTILE not in text
    assert reported_run.HOSTILE in html.unescape(text)


def test_no_secret_and_no_path_of_the_home_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "li"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MY_API_TOKEN", SECRET)
    run_dir = reported_run.make(home / "work" / "runs", end="failed")
    error = {"code": "STK507", "where": "", "fields": {"path": str(home / "x.bin"), "reason": SECRET}}
    reported_run.write_events(run_dir, [{"event": "error", "program": "train", "error": error}])
    text = run_page.page(run_dir)
    assert str(home) not in text
    assert SECRET not in html.unescape(text)
    assert "92653" not in text
    assert "~/x.bin" in text


@pytest.mark.parametrize(
    "said",
    [r"D:\profiles\anna\x.bin", "D:/profiles/anna/x.bin", r"D:\\profiles\\anna\\x.bin", r"d:\Profiles\Anna\x.bin"],
)
def test_the_home_of_windows_is_on_no_page_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(r"D:\profiles\anna"))
    run_dir = reported_run.make(tmp_path, end="failed")
    error = {"code": "STK507", "where": "", "fields": {"path": said, "reason": r"D:\profiles\annabel"}}
    reported_run.write_events(run_dir, [{"event": "error", "program": "train", "error": error}])
    text = run_page.page(run_dir)
    assert re.search(r"~[\\/]+x\.bin", text)
    assert set(re.findall(r"profiles[\\/]+anna\w*", text, re.IGNORECASE)) == {r"profiles\annabel"}


def test_a_home_that_is_a_link_is_on_no_page_by_either_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, home = tmp_path / "disk" / "li", tmp_path / "home"
    real.mkdir(parents=True)
    home.symlink_to(real)
    monkeypatch.setenv("HOME", str(home))
    run_dir = reported_run.make(tmp_path / "runs", end="failed")
    error = {"code": "STK507", "where": "", "fields": {"path": str(real / "x.bin"), "reason": str(home / "y.bin")}}
    reported_run.write_events(run_dir, [{"event": "error", "program": "train", "error": error}])
    text = run_page.page(run_dir)
    assert "~/x.bin" in text
    assert "~/y.bin" in text
    assert str(real) not in text


def test_a_folder_that_is_called_like_a_tag_changes_no_tag(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    manifest = json.loads(run_dir.manifest_file.read_text(encoding="utf-8"))
    run_dir.manifest_file.write_text(json.dumps({**manifest, "folder": "/section"}), encoding="utf-8")
    page = Page(run_page.page(run_dir))
    assert (page.open, page.wrong) == ([], [])


def test_the_plan_stands_beside_what_was_measured(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    compared = {one["name"]: one for one in run_page.figures_of(run_dir)["plan"]}
    made = reported_run.planned()
    assert set(compared) == {"memory_bytes", "tokens_per_second", "time_seconds", "money"}
    assert compared["tokens_per_second"]["measured"] == pytest.approx(made.speed.tokens_per_second)
    assert compared["memory_bytes"]["measured"] == made.memory.peak_reserved_bytes
    seconds = reported_run.STEPS * 8000 / made.speed.tokens_per_second
    assert compared["time_seconds"]["measured"] == pytest.approx(seconds)
    assert compared["money"]["measured"] == pytest.approx(seconds / 3600 * 2.5)
    assert compared["tokens_per_second"]["held"] is True


def test_a_figure_outside_its_interval_is_called_so() -> None:
    figure = plan_check.PlannedFigure("tokens_per_second", 100, 80, 120, 79)
    assert figure.held is False
    assert plan_check.PlannedFigure("tokens_per_second", 100, 80, 120, None).held is None


def test_steps_that_a_resume_does_again_count_once(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    history = run_history.read(run_dir)
    assert [point.step for point in history.pace.points] == pytest.approx(range(1, reported_run.STEPS + 1))
    assert history.num_attempts == 2


def test_checkpoints_are_shown_with_their_digests(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    digest = reported_run.save(run_dir, 80)
    said = words(run_page.page(run_dir))
    assert digest in said
    assert "step 80" in said


def test_a_run_whose_folder_was_renamed_is_resumed_by_its_new_name(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path, end="stopped")
    assert "name=medical" in next_commands.resume(run_dir, tmp_path)
    renamed = RunDir(run_dir.path.rename(tmp_path / "renamed"))
    command = next_commands.resume(renamed, tmp_path)
    assert "name=renamed" in command
    assert "name=medical" not in command


def test_restarts_and_samples_are_told(tmp_path: Path) -> None:
    said = words(run_page.page(reported_run.make(tmp_path)))
    assert "Training ended at step 60 (no sign of life); restarting in 5 s" in said
    assert "EXACT: resuming from step 40." in said
    assert "before no after yes" in said


@pytest.mark.parametrize(("language", "said"), [("en", "user: 2 + 2? target"), ("zh", "用户：2 + 2?")])
def test_a_conversation_is_shown_by_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str, said: str
) -> None:
    monkeypatch.setenv("STOKER_LANG", language)
    run_dir = reported_run.make(tmp_path)
    raw = "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    sample = {"event": "sample", "prompt": raw, "wanted": "4", "after": "4"}
    strange = {**sample, "prompt": "as it is", "turns": [{"who": 1}]}
    turns = [{"role": "user", "content": "2 + 2?"}]
    reported_run.write_events(run_dir, [{**sample, "turns": turns}, strange])
    text = words(run_page.page(run_dir))
    assert said in text
    assert "as it is" in text
    assert "im_start" not in text


@pytest.mark.parametrize(("price", "shown"), [("0 CNY/h", False), ("0.002 CNY/h", False), ("5 CNY/h", True)])
def test_money_has_digits_or_is_left_out(tmp_path: Path, price: str, shown: bool) -> None:
    run_dir = reported_run.make(tmp_path)
    made = reported_run.planned(price=price)
    assert made.cost is not None
    assert made.cost.amount < 0.01  # of so small a training
    files.write_json(run_dir.plan_file, made.model_dump())
    figures = plan_check.compare(made, run_history.read(run_dir), run_page._progress(run_dir))
    text = words(page_sections.planned(figures, made, run_page._progress(run_dir)))
    assert "0.00 CNY" not in text
    assert (f"{made.cost.amount:.4f} CNY" in text) == shown


@pytest.mark.parametrize(
    ("end", "command"),
    [("done", "stoker chat medical"), ("stopped", "stoker train"), ("failed", "stoker logs medical")],
)
def test_the_commands_to_go_on_follow_the_state(tmp_path: Path, end: str, command: str) -> None:
    run_dir = reported_run.make(tmp_path, end=end)
    if end == "done":
        run_dir.final.mkdir(parents=True)
    assert command in words(page_sections.commands(run_dir, run_dir.manifest(), run_page._progress(run_dir)))


def test_a_long_run_has_a_small_page_and_keeps_its_shape(tmp_path: Path) -> None:
    steps = 60_000
    run_dir = reported_run.make(tmp_path, steps=0, end=None)
    run_dir.events_file.unlink()
    made = reported_run.planned()
    attempt = {"event": "attempt", "tier": "EXACT", "resumed_step": 0, "total_steps": steps}
    reported_run.write_events(run_dir, [attempt, *reported_run.steps_of(made, 1, steps)], cuts=True)
    text = run_page.page(run_dir)
    assert len(text) < 200_000
    assert len(re.findall(r"<path", text)) < 2_000
    losses = run_page._progress(run_dir).loss_curve.points
    assert (losses[0].step < 100, losses[-1].step > steps - 100) == (True, True)


def test_the_page_replaces_an_earlier_one_in_one_step(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    (run_dir.path / run_page.NAME).write_text("old", encoding="utf-8")
    path = run_page.write(run_dir)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [one.name for one in run_dir.path.iterdir() if "report.html" in one.name] == ["report.html"]


def test_a_run_without_a_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="STK501"):
        run_page.page(RunDir(tmp_path / "nobody"))


def test_a_damaged_data_report_is_named(tmp_path: Path) -> None:
    run_dir = reported_run.make(tmp_path)
    assert page_sections.data(run_dir) == ""
    run_dir.data.mkdir()
    (run_dir.data / "report.json").write_text("{}", encoding="utf-8")
    assert "STK311" in page_sections.data(run_dir)


def test_the_data_report_names_files_without_their_folders() -> None:
    split = Split(
        sequences=40,
        segments=90,
        tokens=5000,
        trained_tokens=4000,
        longest=128,
        longest_segment=128,
        shards=[],
        files={},
    )
    source = {"path": "/data/private/rows.jsonl", "format": "messages", "rows": 91, "bad_rows": 1}
    report = Report(
        digest="d" * 64,
        key="",
        length=128,
        packed=True,
        vocab=300,
        objective="sft",
        detected=[source],
        rows_read=91,
        bad_rows=1,
        truncated_rows=0,
        pack_efficiency=0.9,
        length_histogram={"64": 60, "128": 30},
        unigram_entropy=1.0,
        train=split,
    )
    text = "".join(fragment(report) for fragment in page_sections.DATA_FRAGMENTS)
    said = words(text)
    assert "rows.jsonl: messages; rows: 91, bad: 1" in said
    assert "private" not in said
    assert "90 documents packed into 40 sequences" in said
    assert 'style="width:50.0%"' in text


def test_who_trained_a_reward_model_is_told_to_evaluate_it_and_nothing_that_refuses_it() -> None:
    assert [command for _, command in next_commands.after_training("judge", scores=True)] == ["stoker eval judge"]
    assert len(next_commands.after_training("model", scores=False)) > 1
