"""`transformers serve` behind the token, for machines without vLLM: `python transformers_server.py MODEL PORT`.

Their command has neither a token nor a place to put one, so the same parts are put together here, with the guard in
front. One request is answered at a time. Runs in any environment with `transformers[serving]`.
"""

import importlib
import inspect
import sys

import stoker_guard
import uvicorn
from transformers.cli.serving.model_manager import ModelManager
from transformers.cli.serving.server import build_server
from transformers.cli.serving.utils import GenerationState

_HANDLERS = {
    "chat_handler": ("chat_completion", "ChatCompletionHandler"),
    "completion_handler": ("completion", "CompletionHandler"),
    "response_handler": ("response", "ResponseHandler"),
    "transcription_handler": ("transcription", "TranscriptionHandler"),
    "systemone_handler": ("systemone", "SystemOneHandler"),
}
"""Possible parameters of `build_server`, which differ between versions."""


def main(model: str, port: int) -> None:
    """Serve one model on the loopback address until terminated."""
    models, state = ModelManager(force_model=model), GenerationState()
    wanted = inspect.signature(build_server).parameters
    handlers = {
        name: getattr(importlib.import_module(f"transformers.cli.serving.{module}"), handler)(models, state)
        for name, (module, handler) in _HANDLERS.items()
        if name in wanted
    }
    app = build_server(models, generation_state=state, **handlers)
    app.add_middleware(stoker_guard.Guard)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="info")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
