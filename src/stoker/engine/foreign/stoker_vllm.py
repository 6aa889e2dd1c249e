"""A vLLM that answers prompts of a training; runs in the `vllm` environment, started by `engine/vllm_sampler.py`.

Orders come as lines of JSON on stdin, replies go to what was stdout; what vLLM itself prints goes to stderr. It ends
when its stdin ends: it never outlives whoever started it.

    {"load": {...}, "sleeps": true, "rank": 8} the engine's options          -> {"ready": "<version>"}
    {"weights": "<folder>", "adapter": true}   these are the weights now     -> {"done": true}
    {"prompts": [[...]], "seeds": [...], ...}  an answer to each             -> {"alive": n}, then {"answers": [...]}
    {"sleep": true}                            the card is needed elsewhere  -> {"done": true}
"""

import json
import os
import queue
import sys
import threading
import time
from typing import Any, get_args

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # nothing but this process has to end
# The trainer's. A vLLM that sleeps gives memory back by an allocator of its own, which cannot have such segments.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"

import vllm  # reads them
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.config.lora import MaxLoRARanks
from vllm.lora.request import LoRARequest

_ALIVE_SECONDS = 1.0


class Sampler:
    """An engine, and what it was told about weights."""

    def __init__(self, load: dict[str, Any], *, sleeps: bool, rank: int) -> None:
        """Load a model.

        Args:
            load: Options of vLLM's engine.
            sleeps: Whether the card is shared with others.
            rank: Of an adapter that is given beside the model; 0 without one.
        """
        if rank:
            sizes = (size for size in get_args(MaxLoRARanks) if size >= rank)
            load = {**load, "enable_lora": True, "max_loras": 1, "max_lora_rank": next(sizes, rank)}
        self._engine = LLMEngine.from_engine_args(EngineArgs(**load, enable_sleep_mode=sleeps))
        self._sleeps, self._asleep = sleeps, False
        self._versions = 0
        self._adapter: LoRARequest | None = None
        if load["load_format"] == "dummy":  # weights are read from now on
            self._engine.collective_rpc("update_config", args=({"load_config": {"load_format": "safetensors"}},))

    def take(self, folder: str, *, adapter: bool) -> None:
        """Use the weights in a folder: a whole model's, or those of an adapter beside the model that was loaded."""
        if not adapter:
            self._wake(["weights"])
            self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            self._wake(["kv_cache"])
            self._asleep = False
        else:
            self._awake()
            if self._adapter is not None:
                self._engine.remove_lora(self._adapter.lora_int_id)
            self._versions += 1  # a number that was used before would mean the adapter of then
            self._adapter = LoRARequest(f"version-{self._versions}", self._versions, folder)
            self._engine.add_lora(self._adapter)
        self._engine.reset_prefix_cache()  # keys and values of the weights before

    def answers(
        self,
        prompts: list[list[int]],
        seeds: list[int] | None,
        temperature: float,
        longest: int,
        stops: list[int],
        alive: Any,
    ) -> list[list[Any]]:
        """Of an answer to each prompt: tokens, their log-probabilities, whether it ended. Likeliest without seeds."""
        self._awake()
        for number, prompt in enumerate(prompts):
            params = SamplingParams(
                temperature=0.0 if seeds is None else temperature,
                seed=None if seeds is None else seeds[number],
                max_tokens=longest,
                stop_token_ids=stops,
                ignore_eos=True,  # a model's own settings may name another end
                logprobs=0,  # of the token itself
                detokenize=False,
            )
            self._engine.add_request(str(number), {"prompt_token_ids": prompt}, params, lora_request=self._adapter)
        found: dict[int, list[Any]] = {}
        said = time.monotonic()
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    found[int(output.request_id)] = _answer(output.outputs[0])
            if time.monotonic() - said > _ALIVE_SECONDS:
                alive(len(found))
                said = time.monotonic()
        return [found[number] for number in range(len(prompts))]

    def sleep(self) -> None:
        """Leave the card to others. Whole weights come anew; a model beside an adapter is kept in main memory."""
        if self._sleeps and not self._asleep:
            self._engine.sleep(level=1 if self._adapter else 2)
            self._asleep = True

    def _awake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _wake(self, tags: list[str]) -> None:
        if self._asleep:
            self._engine.wake_up(tags)


def _answer(made: Any) -> list[Any]:
    tokens = list(made.token_ids)
    values = [position[token].logprob for token, position in zip(tokens, made.logprobs, strict=True)]
    return [tokens, values, made.finish_reason == "stop"]


def _orders() -> "queue.Queue[dict[str, Any]]":
    """What comes on stdin. It is read beside the work, so that its end is noticed while answers are generated."""
    found: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            found.put(json.loads(line))
        os._exit(0)  # nobody is there to read an answer, and nothing is to be saved

    threading.Thread(target=read, daemon=True).start()
    return found


def main() -> None:
    """Do as told until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**reply: Any) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    orders = _orders()
    sampler = Sampler(**orders.get())
    say(ready=vllm.__version__)
    while True:
        order = orders.get()
        if "weights" in order:
            sampler.take(order["weights"], adapter=order["adapter"])
            say(done=True)
        elif "prompts" in order:
            say(answers=sampler.answers(**order, alive=lambda count: say(alive=count)))
        else:
            sampler.sleep()
            say(done=True)


if __name__ == "__main__":
    main()
