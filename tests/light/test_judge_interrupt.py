"""Ctrl-C while an endpoint is asked for verdicts, as a person meets it: a process, a signal, real seconds."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import http_page

LATE_SECONDS = 60.0
PROGRAM = """
import signal, sys
from pathlib import Path
from stoker.handover import judges, win_rate

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
judge, folder = judges.EndpointJudge(sys.argv[1], "m"), Path(sys.argv[2])
told = lambda done, of: print(done, flush=True)
win_rate.measure("m", judge, folder / "pairs.json", folder / "evals" / "kept.jsonl", told)
"""


def test_ctrl_c_waits_for_no_answer_and_verdicts_that_were_given_are_kept(tmp_path: Path) -> None:
    released = threading.Event()

    class Late(http_page.Quiet):
        def do_POST(self) -> None:  # noqa: N802  # http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if b"slow" in body:
                released.wait(LATE_SECONDS)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"choices": [{"message": {"content": "A"}, "finish_reason": "stop"}]}')

    named = ["quick", *["slow"] * 6]
    pairs = [{"prompt": word, "before": f"b {i}", "after": f"a {i}"} for i, word in enumerate(named)]
    (tmp_path / "pairs.json").write_text(json.dumps({"pairs": pairs}), encoding="utf-8")
    (tmp_path / "evals").mkdir()
    with http_page.serving(Late) as address:
        words = [sys.executable, "-c", PROGRAM, f"{address}/v1", str(tmp_path)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as judging:
            assert judging.stdout is not None
            try:
                assert judging.stdout.readline() == b"1\n"
                judging.send_signal(signal.SIGINT)
                judging.wait(LATE_SECONDS / 2)  # half a second of work, on a machine that does other things, too
            finally:
                released.set()
                judging.kill()
    kept = [json.loads(line) for line in (tmp_path / "evals" / "kept.jsonl").read_text("utf-8").splitlines()]
    assert [(one["prompt"], one["verdict"]) for one in kept] == [("quick", 0.5)]
