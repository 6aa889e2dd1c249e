"""Why a server ended, from logs of vLLM 0.32: shortened, paths cut; that of two ranks is put together by hand."""

import pytest

from stoker.artifacts import server_log
from stoker.artifacts.server_log import Cause

FIRST_REQUEST = """\
(APIServer pid=48) WARNING 11-18 10:46:43 [system_utils.py:255] fd limit errors like `OSError: [Errno 24]`
(APIServer pid=48) ERROR 11-18 10:46:46 [repo_utils.py:126] Error parsing config for final: Unrecognized model in final.
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]   File "vllm/triton_moe.py", line 322, in apply
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]     compute_type = tl.float32
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]                    ^^^^^^^^^^
(Worker pid=15) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] AttributeError: module 'triton.language' has no \
attribute 'float32'
(EngineCore pid=98) ERROR 11-18 10:53:15 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=98) ERROR 11-18 10:53:15 [core.py:1512]     raise RuntimeError(
(EngineCore pid=98) ERROR 11-18 10:53:15 [core.py:1512] RuntimeError: Worker failed with error 'module', please check \
the stack trace above for the root cause
(APIServer pid=48) ERROR 11-18 10:53:15 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=48) ERROR 11-18 10:53:15 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
INFO:     127.0.0.1:48684 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
"""
INSPECTED = """\
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] Error in inspecting model architecture 'Gemma3'
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] Traceback (most recent call last):
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120]     returned.check_returncode()
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] subprocess.CalledProcessError: Command '['python', '-m', \
'vllm.model_executor.models.registry']' returned non-zero exit status 1.
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] The above exception was the direct cause of the following:
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] Traceback (most recent call last):
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120]     raise RuntimeError(
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] RuntimeError: Error raised in subprocess:
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] Triton is installed, but doesn't include CPU backend.
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] Traceback (most recent call last):
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120]     from torchvision.transforms.v2 import functional as tvF
(APIServer pid=21) ERROR 11-18 10:42:22 [registry.py:1120] ModuleNotFoundError: No module named 'torchvision'
Traceback (most recent call last):
    model_config = self.create_model_config()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Model architectures ['Gemma3ForConditionalGeneration'] failed to be inspected. Please check the logs \
for more details. [type=value_error, input_value=ArgsKwargs((), {'model': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_ADAPTERS = """\
(Worker pid=65) ERROR 11-18 11:09:09 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=65) ERROR 11-18 11:09:09 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=65) ERROR 11-18 11:09:09 [multiproc_executor.py:953]   File "vllm/mixin.py", line 48, in load_lora_model
(Worker pid=65) ERROR 11-18 11:09:09 [multiproc_executor.py:953] ValueError: GPT2LMHeadModel does not support LoRA yet.
(EngineCore pid=39) ERROR 11-18 11:09:14 [core.py:1510] EngineCore failed to start.
(EngineCore pid=39) ERROR 11-18 11:09:14 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=39) ERROR 11-18 11:09:14 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
NOT_CACHED = "--mamba-block-size can only be set with --enable-prefix-caching"
INVALID = """\
Traceback (most recent call last):
    return ModelConfig(
pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, --mamba-block-size can only be set with --enable-prefix-caching \
[type=value_error, input_value=ArgsKwargs((), {'model': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
TWO_RANKS = """\
(Worker_TP0 pid=5) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP1 pid=6) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker_TP0 pid=5) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]   File "/env/site-packages/vllm/lora/punica.py", \
line 9, in add_lora_w13
(Worker_TP1 pid=6) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]   File "/env/site-packages/vllm/lora/punica.py", \
line 9, in add_lora_w13
(Worker_TP0 pid=5) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]     raise NotImplementedError
(Worker_TP0 pid=5) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] NotImplementedError
(Worker_TP1 pid=6) ERROR 11-18 10:53:15 [multiproc_executor.py:1063]     raise NotImplementedError
(Worker_TP1 pid=6) ERROR 11-18 10:53:15 [multiproc_executor.py:1063] NotImplementedError
"""
POINTING = """\
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {died}
"""


def found(log: str, exit_code: int = 1) -> Cause:
    return server_log.cause([line.rstrip() for line in log.splitlines() if line.strip()], exit_code)


@pytest.mark.parametrize(
    ("log", "sentence", "of_adapter"),
    [
        (FIRST_REQUEST, "AttributeError: module 'triton.language' has no attribute 'float32'", True),
        (NO_ADAPTERS, "ValueError: GPT2LMHeadModel does not support LoRA yet.", True),
        (INSPECTED, "ModuleNotFoundError: No module named 'torchvision'", False),
        (INVALID, f"ValidationError: 1 validation error for VllmConfig: Value error, {NOT_CACHED}", False),
        (TWO_RANKS, "NotImplementedError in add_lora_w13 (vllm/lora/punica.py)", True),
    ],
)
def test_the_cause_is_the_exception_that_came_first(log: str, sentence: str, of_adapter: bool) -> None:
    assert found(log) == Cause(sentence, of_adapter)


@pytest.mark.parametrize(
    "line",
    ["double free or corruption (!prev)", "Fatal Python error: Illegal instruction", "free(): invalid pointer"],
)
def test_a_crash_of_native_code_is_told_as_such(line: str) -> None:
    assert found(f"(EngineCore pid=7) INFO 11-18 10:01:02 [core.py:1] loading\n{line}\n{POINTING}").sentence == line


def test_a_signal_is_named_if_nothing_else_is_known() -> None:
    assert found(POINTING.replace("{died}", "{'EngineCore': -11}")).sentence == "EngineCore: SIGSEGV"
    assert found("loading", exit_code=-4).sentence == "SIGILL"
    assert found("loading", exit_code=-63).sentence == "signal 63"


def test_an_exception_that_points_to_nothing_is_better_than_no_cause() -> None:
    assert found(POINTING).sentence.startswith("RuntimeError: Engine core initialization failed")


def test_a_log_without_an_error_gives_its_last_line() -> None:
    calm = FIRST_REQUEST.splitlines()[0] + "\nINFO:     Application startup complete."
    assert found(calm) == Cause("INFO:     Application startup complete.")
    assert found("") == Cause("-")
