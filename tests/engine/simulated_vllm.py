"""A simulation of vLLM's server for the parity gate's tests: the same words on the wire, a real model behind them.

What it says was taken from vLLM 0.32; that the real one says so too is shown by the test that starts it.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from stoker.artifacts.endpoint import Endpoint

TOKEN = "a-token-of-the-test"
CONTEXT = 128


class Engine:
    """A model, a tokenizer, and the tokens it stops at."""

    def __init__(self, model: Any, tokenizer: Any, stops: list[int], room: int = CONTEXT) -> None:
        self.model, self.tokenizer, self.stops, self.room = model, tokenizer, stops, room
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            return {"tokens": self.tokenizer(body["prompt"]).input_ids, "max_model_len": self.room}
        text, ids = self._prompt(body)
        assert len(ids) + body["max_tokens"] <= self.room
        with self.lock, torch.no_grad():
            choice = self._generate(ids, body)
            if "prompt_logprobs" in body:
                lines = self.model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
                after = [{str(ids[at]): {"logprob": lines[at - 1, ids[at]].item()}} for at in range(1, len(ids))]
                choice["prompt_logprobs"] = [None, *after]
        if path == "/v1/chat/completions":
            return {"choices": [choice], "prompt_token_ids": ids, "prompt_text": text}
        return {"choices": [{**choice, "prompt_token_ids": ids}]}

    def _prompt(self, body: dict[str, Any]) -> tuple[str, list[int]]:
        if "messages" in body:
            text = self.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
            return text, self.tokenizer(text, add_special_tokens=False).input_ids
        prompt = body["prompt"]
        return "", prompt if isinstance(prompt, list) else self.tokenizer(prompt).input_ids

    def _generate(self, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        assert body["temperature"] == 0
        tokens: list[int] = []
        tops = []
        step, cache = torch.tensor([ids]), None
        while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in self.stops):
            out = self.model(input_ids=step, past_key_values=cache, use_cache=True)
            line, cache = out.logits[0, -1].float().log_softmax(-1), out.past_key_values
            best = line.topk(body.get("logprobs") or 1)
            tops.append({f"token_id:{i}": p for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)})
            tokens.append(int(line.argmax()))
            step = torch.tensor([tokens[-1:]])
        reason = "stop" if tokens[-1] in self.stops else "length"
        return {"token_ids": tokens, "logprobs": {"top_logprobs": tops}, "finish_reason": reason}


@contextmanager
def serving(engine: Engine) -> Iterator[Endpoint]:
    """The simulation on a free port of the loopback address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.headers["Authorization"] == f"Bearer {TOKEN}"
            answer = engine.answer(self.path, body) if known else {"error": "Unauthorized"}
            self.send_response(200 if known else 401)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/v1", TOKEN, "model")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
