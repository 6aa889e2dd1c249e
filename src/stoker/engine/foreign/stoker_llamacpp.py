"""llama.cpp's OpenAI server for one GGUF file, on the loopback address; runs in the `llamacpp` environment.

    stoker_llamacpp.py MODEL ALIAS CONTEXT THREADS ADDRESS

The token comes from the environment. The server's address is written to ADDRESS once it answers; it lives until its
stdin ends, so it never outlives whoever started it.
"""

import os
import sys
from pathlib import Path

import xllamacpp


def main(model: str, alias: str, context: int, threads: int) -> xllamacpp.Server:
    """Start the server on a free port."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [os.environ["STOKER_API_TOKEN"]]
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.ui = False
    params.warmup = False
    return xllamacpp.Server(params)


if __name__ == "__main__":
    server = main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    aside = Path(sys.argv[5] + ".tmp")
    aside.write_text(server.listening_address, encoding="utf-8")
    aside.rename(sys.argv[5])
    sys.stdin.read()
    os._exit(0)  # the library's threads have nothing to save
