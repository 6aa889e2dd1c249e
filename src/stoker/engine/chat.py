"""The chat program: JSON lines in, JSON lines out; the caller prints.

in:   {"messages": [{"role": "user", "content": "..."}], "max_tokens": 200}
out:  {"ready": true, "plain": false}, then per request {"text": "..."}* and {"end": true}
"""

import json
import sys
from pathlib import Path

from stoker.engine import generate, program
from stoker.rundir.layout import RunDir


def main(path: Path) -> int:
    """Answer until stdin ends."""
    run_dir = RunDir(path)
    model, tokenizer = generate.load(run_dir, sys.argv[2] if len(sys.argv) > 2 else None)
    plain = generate.is_plain(run_dir, tokenizer)
    _say({"ready": True, "plain": plain})
    for line in sys.stdin:
        request = json.loads(line)
        prompt = generate.prompt_ids(tokenizer, request["messages"], plain=plain)
        for piece in generate.stream(model, tokenizer, prompt, request["max_tokens"], sample=plain):
            if piece:
                _say({"text": piece})
        _say({"end": True})
    return 0


def _say(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(program.run(main))
