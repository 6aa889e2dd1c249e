"""Every environment variable Stoker reads or sets, in one documented list.

Nothing else in the house touches `os.environ` by name; the reference page is generated from `VARIABLES`.
Variables here choose language and places on disk. None of them changes what is trained: that is the run file's job.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name and, in both languages, what it does."""

    name: str
    english: str
    chinese: str


LANG = Variable(
    "STOKER_LANG",
    "Language of messages: `en` or `zh`. Without it the locale decides.",
    "消息语言：`en` 或 `zh`。未设置时由系统区域决定。",
)
RUNS = Variable(
    "STOKER_RUNS",
    "Folder that holds run directories. Default: `runs` in the current folder.",
    "存放运行目录的文件夹。默认：当前文件夹下的 `runs`。",
)
HF_ENDPOINT = Variable(
    "HF_ENDPOINT",
    "Address of the model hub or a mirror of it; read when a model's shape is looked up.",
    "模型中心或其镜像的地址；查询模型结构时读取。",
)
HF_HOME = Variable(
    "HF_HOME",
    "Hugging Face's cache folder; a model's shape is read from it before the network is asked.",
    "Hugging Face 缓存文件夹；查询模型结构时先读缓存，再访问网络。",
)
HF_HUB_OFFLINE = Variable(
    "HF_HUB_OFFLINE",
    "`1` keeps Stoker and Hugging Face libraries off the network.",
    "设为 `1` 时，Stoker 与 Hugging Face 库都不访问网络。",
)
CUDA_VISIBLE_DEVICES = Variable(
    "CUDA_VISIBLE_DEVICES",
    "The GPUs a run may use; respected when the machine is examined.",
    "本次运行可用的 GPU；检查机器时会遵守。",
)
OMP_NUM_THREADS = Variable(
    "OMP_NUM_THREADS",
    "CPU threads per process. Part of the numeric fingerprint: another count may round differently.",
    "每个进程的 CPU 线程数。属于数值指纹：线程数不同，舍入可能不同。",
)
TENSORBOARD_LOGGING_DIR = Variable(
    "TENSORBOARD_LOGGING_DIR",
    "Set by Stoker for the trainer, so that TensorBoard files land in the run directory.",
    "由 Stoker 为训练进程设置，使 TensorBoard 文件写入运行目录。",
)

TOOLS = Variable(
    "STOKER_TOOLS",
    "Folder with the environments of tools that must not share ours (`vllm`, `llamacpp`, `llmcompressor`). "
    "Default: `~/.stoker/tools`.",
    "存放独立工具环境（`vllm`、`llamacpp`、`llmcompressor`）的文件夹。默认：`~/.stoker/tools`。",
)

LC_ALL = Variable("LC_ALL", "The system's locale, before `LANG`.", "系统区域设置，优先于 `LANG`。")
SYSTEM_LANG = Variable("LANG", "The system's locale.", "系统区域设置。")

VARIABLES: tuple[Variable, ...] = (
    LANG,
    RUNS,
    HF_ENDPOINT,
    HF_HOME,
    HF_HUB_OFFLINE,
    CUDA_VISIBLE_DEVICES,
    OMP_NUM_THREADS,
    TENSORBOARD_LOGGING_DIR,
    TOOLS,
    LC_ALL,
    SYSTEM_LANG,
)


def read(variable: Variable, default: str = "") -> str:
    """The variable's value, or `default` where it is unset or empty."""
    return os.environ.get(variable.name) or default


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process' environment with `extra` on top, for a child process."""
    return {**os.environ, **extra}
