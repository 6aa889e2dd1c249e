"""Every environment variable Stoker reads or sets, in one documented list.

Nothing else in the house touches `os.environ` by name; the reference page is generated from `VARIABLES`.
Variables here choose language and places on disk. None of them changes what is trained: that is the run file's job.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name and, in both languages, what it does."""

    name: str
    english: str
    chinese: str


LANG = Variable(
    "STOKER_LANG",
    "Language of messages: `en` or `zh`. Default: from the locale.",
    "消息语言：`en` 或 `zh`。未设置时由系统区域决定。",
)
RUNS = Variable(
    "STOKER_RUNS",
    "Folder that holds run directories. Default: `runs` in the current folder.",
    "存放运行目录的文件夹。默认：当前文件夹下的 `runs`。",
)
HOME = Variable(
    "STOKER_HOME",
    "Stoker's per-user folder on this machine: hosts, their pinned keys, its own ssh key, remembered file digests, "
    "records of weighed models, your own prices. Default: `~/.stoker`.",
    "Stoker 在本机保存个人信息的文件夹：主机、已登记的主机密钥、自己的 ssh 密钥、文件摘要缓存、模型清点记录、"
    "你自己的价格。"
    "默认：`~/.stoker`。",
)
HF_ENDPOINT = Variable(
    "HF_ENDPOINT",
    "Address of the model hub or a mirror of it; used to look up a model's shape.",
    "模型中心或其镜像的地址；查询模型结构时读取。",
)
HF_HOME = Variable(
    "HF_HOME",
    "Hugging Face's cache folder; a model's shape is read from it before the network is used.",
    "Hugging Face 缓存文件夹；查询模型结构时先读缓存，再访问网络。",
)
HF_HUB_OFFLINE = Variable(
    "HF_HUB_OFFLINE",
    "`1` keeps Stoker and Hugging Face libraries off the network.",
    "设为 `1` 时，Stoker 与 Hugging Face 库都不访问网络。",
)
CUDA_VISIBLE_DEVICES = Variable(
    "CUDA_VISIBLE_DEVICES",
    "The GPUs a run may use; respected when the machine is inspected.",
    "本次运行可用的 GPU；检查机器时会遵守。",
)
CUDA_DEVICE_ORDER = Variable(
    "CUDA_DEVICE_ORDER",
    "Set by Stoker for a server, so that GPU numbers match the driver's.",
    "由 Stoker 为服务进程设置，使 GPU 编号与驱动一致。",
)
OMP_NUM_THREADS = Variable(
    "OMP_NUM_THREADS",
    "CPU threads per process. Part of the numeric fingerprint: another count may round differently.",
    "每个进程的 CPU 线程数。属于数值指纹：线程数不同，舍入可能不同。",
)
ONEDNN_MAX_CPU_ISA = Variable(
    "ONEDNN_MAX_CPU_ISA",
    "Lowers the instructions that oneDNN uses on a CPU. Part of the numeric fingerprint: others round differently.",
    "降低 oneDNN 在 CPU 上使用的指令集。属于数值指纹：指令集不同，舍入可能不同。",
)
DNNL_MAX_CPU_ISA = Variable(
    "DNNL_MAX_CPU_ISA",
    "The older name of `ONEDNN_MAX_CPU_ISA`, which oneDNN reads too.",
    "`ONEDNN_MAX_CPU_ISA` 的旧名字，oneDNN 也会读取。",
)
ONEDNN_DEFAULT_FPMATH_MODE = Variable(
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "Lets oneDNN compute in less than float32 on a CPU. Part of the numeric fingerprint.",
    "允许 oneDNN 在 CPU 上以低于 float32 的精度计算。属于数值指纹。",
)
DNNL_DEFAULT_FPMATH_MODE = Variable(
    "DNNL_DEFAULT_FPMATH_MODE",
    "The older name of `ONEDNN_DEFAULT_FPMATH_MODE`, which oneDNN reads too.",
    "`ONEDNN_DEFAULT_FPMATH_MODE` 的旧名字，oneDNN 也会读取。",
)
TOKENIZERS_PARALLELISM = Variable(
    "TOKENIZERS_PARALLELISM",
    "Set by Stoker to `false` for processes of which several tokenise at once.",
    "由 Stoker 设为 `false`：同时有几个进程分词时，每个进程只用一个线程。",
)
TENSORBOARD_LOGGING_DIR = Variable(
    "TENSORBOARD_LOGGING_DIR",
    "Set by Stoker for the trainer, so that TensorBoard files are in the run directory.",
    "由 Stoker 为训练进程设置，使 TensorBoard 文件写入运行目录。",
)

TOOLS = Variable(
    "STOKER_TOOLS",
    "Folder with the environments of tools that need their own (`vllm`, `llamacpp`, `llmcompressor`, `datatrove`, "
    "`kaggle`). Default: `~/.stoker/tools`.",
    "存放独立工具环境（`vllm`、`llamacpp`、`llmcompressor`、`datatrove`、`kaggle`）的文件夹。默认：`~/.stoker/tools`。",
)

API_TOKEN = Variable(
    "STOKER_API_TOKEN",
    "The token that `stoker serve` asks clients for. Default: a random one, kept in the run directory "
    "(`serve.token`, readable by its owner only).",
    "`stoker serve` 要求客户端出示的令牌。未设置时随机生成，并保存在运行目录中（`serve.token`，仅本人可读）。",
)
VLLM_API_KEY = Variable(
    "VLLM_API_KEY",
    "Set by Stoker for the server: the token, so that it is in no command line.",
    "由 Stoker 为服务进程设置：令牌经此传递，不出现在命令行里。",
)
VLLM_NO_USAGE_STATS = Variable(
    "VLLM_NO_USAGE_STATS",
    "Set by Stoker for the server: vLLM sends no usage report.",
    "由 Stoker 为服务进程设置：vLLM 不发送使用统计。",
)
VLLM_HOST_IP = Variable(
    "VLLM_HOST_IP",
    "Set by Stoker for the server: its own processes connect over the loopback address.",
    "由 Stoker 为服务进程设置：其内部进程只在回环地址上通信。",
)
GLOO_SOCKET_IFNAME = Variable(
    "GLOO_SOCKET_IFNAME",
    "Set by Stoker for processes of one machine that work together: they connect over the loopback interface.",
    "由 Stoker 为同一台机器上协作的进程设置：只使用回环网络接口。",
)
NCCL_SOCKET_IFNAME = Variable(
    "NCCL_SOCKET_IFNAME",
    "Set by Stoker for the server: NCCL listens on the loopback interface.",
    "由 Stoker 为服务进程设置：NCCL 只在回环网络接口上监听。",
)
PYTHONPATH = Variable(
    "PYTHONPATH",
    "Set by Stoker for the server: the folder of the token check.",
    "由 Stoker 为服务进程设置：用于找到检查令牌的模块。",
)

RENDEZVOUS = Variable(
    "STOKER_RENDEZVOUS",
    "Set by Stoker: the rendezvous folder of the processes of one training.",
    "由 Stoker 设置：同一次训练的各进程会合所用的文件夹。",
)
STORE = Variable(
    "STOKER_STORE",
    "Set by Stoker: rendezvous address and port of the processes of several machines.",
    "由 Stoker 设置：多台机器上的训练进程会合的地址与端口。",
)
FIRST_RANK = Variable(
    "STOKER_FIRST_RANK",
    "Set by Stoker: the number of this machine's first process among those of several machines.",
    "由 Stoker 设置：多台机器一起训练时，本机第一个进程的编号。",
)
RANKS = Variable(
    "STOKER_RANKS",
    "Set by Stoker: how many processes train on all machines together.",
    "由 Stoker 设置：所有机器上共有几个训练进程。",
)
NODE = Variable(
    "STOKER_NODE",
    "Set by Stoker: the name of this machine among several that train together.",
    "由 Stoker 设置：多台机器一起训练时，本机的名字。",
)
MEETING = Variable(
    "STOKER_MEETING",
    "Set by Stoker: which job of a queue the machines that train together belong to.",
    "由 Stoker 设置：一起训练的各台机器属于队列中的哪个作业。",
)
SLURM_JOB_NUM_NODES = Variable(
    "SLURM_JOB_NUM_NODES", "Slurm: how many machines this job has.", "Slurm：本作业有多少台机器。"
)
ATTEMPT = Variable(
    "STOKER_ATTEMPT",
    "Set by Stoker: the number of this attempt, for the names of the ranks' logs.",
    "由 Stoker 设置：本次尝试的编号，用于各进程日志的文件名。",
)

RANK = Variable(
    "RANK", "Set by torchrun: which process of a training this is.", "由 torchrun 设置：当前是第几个训练进程。"
)
WORLD_SIZE = Variable(
    "WORLD_SIZE", "Set by torchrun: how many processes train together.", "由 torchrun 设置：共有几个进程一起训练。"
)
LOCAL_RANK = Variable(
    "LOCAL_RANK",
    "Set by torchrun: which GPU of this machine a process uses.",
    "由 torchrun 设置：进程使用本机的第几块 GPU。",
)
RESTART_COUNT = Variable(
    "TORCHELASTIC_RESTART_COUNT",
    "Set by torchrun: how often it has restarted the processes.",
    "由 torchrun 设置：进程被重新启动的次数。",
)

AWS_ENDPOINT_URL = Variable(
    "AWS_ENDPOINT_URL",
    "Address of an S3-compatible service, for a store `s3://...`. Default: Amazon's own.",
    "S3 兼容服务的地址，用于 `s3://...` 存储。未设置时使用亚马逊自己的服务。",
)
AWS_ACCESS_KEY_ID = Variable(
    "AWS_ACCESS_KEY_ID",
    "Access key of an S3-compatible store. Never written anywhere.",
    "访问 S3 兼容存储的密钥编号。不会被写到任何地方。",
)
AWS_SECRET_ACCESS_KEY = Variable(
    "AWS_SECRET_ACCESS_KEY",
    "Its secret key. Never written anywhere.",
    "对应的密钥。不会被写到任何地方。",
)
AWS_SESSION_TOKEN = Variable(
    "AWS_SESSION_TOKEN",
    "The token of a temporary access key. Never written anywhere.",
    "临时密钥的令牌，只在数小时内有效。不会被写到任何地方。",
)
SSH_CONFIG = Variable(
    "STOKER_SSH_CONFIG",
    "An ssh configuration file to use for a store `ssh://...` instead of `~/.ssh/config`.",
    "用于 `ssh://...` 存储的 ssh 配置文件，代替 `~/.ssh/config`。",
)
HF_TOKEN = Variable(
    "HF_TOKEN",
    "Hugging Face access token, for a store `hf://...` and for gated models. Never written anywhere.",
    "访问 Hugging Face 的令牌，用于 `hf://...` 存储和需要授权的模型。不会被写到任何地方。",
)

DEADLINE = Variable(
    "STOKER_DEADLINE",
    "When this machine is reclaimed, such as `2026-11-15T20:00:00+00:00`. Training commits and stops before.",
    "本机被收回的时间，例如 `2026-11-15T20:00:00+00:00`。训练会在此之前提交检查点并停止。",
)
SLURM_JOB_END_TIME = Variable(
    "SLURM_JOB_END_TIME",
    "Set by Slurm: when the job ends. Training commits and stops before.",
    "由 Slurm 设置：作业的结束时间。训练会在此之前提交检查点并停止。",
)
METADATA = Variable(
    "STOKER_METADATA",
    "Where spot notices are polled, as `host` or `host:port`. "
    "Default: `169.254.169.254`, where AWS, Google Cloud and Azure respond. `off` disables it.",
    "查询云平台抢占通知的地址，写作 `host` 或 `host:port`。默认：`169.254.169.254`，"
    "AWS、Google Cloud 与 Azure 都在此应答。设为 `off` 则不查询。",
)

LAUNCHED = Variable(
    "STOKER_LAUNCHED",
    "Set by Stoker on a rented machine: when the launch began. The time until training counts as spent.",
    "由 Stoker 在租用的机器上设置：启动开始的时间。训练开始之前所用的时间也计入预算。",
)
WEBHOOK = Variable(
    "STOKER_WEBHOOK",
    "A URL that is notified how a run ended and what happens to the machine: JSON by POST. Never written anywhere.",
    "接收通知的地址：运行如何结束、机器如何处理，以 POST 发送 JSON。不会被写到任何地方。",
)
AUTODL_TOKEN = Variable(
    "STOKER_AUTODL_TOKEN",
    "The developer token of your AutoDL account, for power, price, balance and messages. Sent to AutoDL only, never "
    "written anywhere.",
    "AutoDL 账号的开发者令牌，用于开关机、查询价格和余额、发送消息。只发给 AutoDL，不会被写到任何地方。",
)
NOTIFY_COMMAND = Variable(
    "STOKER_NOTIFY_COMMAND",
    "A command that gets the same notification on its standard input, such as `mail -s stoker "
    "me@example.org`. No shell.",
    "从标准输入接收同样消息的命令，例如 `mail -s stoker me@example.org`。不经过 shell。",
)

NETWORK = Variable(
    "STOKER_NETWORK",
    "Set by Stoker on another machine: which mirrors are used there and why, for the plan.",
    "由 Stoker 在其他机器上设置：那里使用哪些镜像以及原因，写入计划。",
)
PIP_INDEX_URL = Variable(
    "PIP_INDEX_URL",
    "The index pip loads packages from; kept if set, else set on another machine to one that responds.",
    "pip 下载软件包的索引地址；已设置时保持不变，否则由 Stoker 在其他机器上设为能连通的一个。",
)
NO_PROXY = Variable(
    "no_proxy",
    "Set by Stoker on another machine along with the platform's proxy: addresses that bypass it.",
    "由 Stoker 在其他机器上与平台代理一同设置：哪些地址不经过代理。",
)

LC_ALL = Variable("LC_ALL", "The system's locale, before `LANG`.", "系统区域设置，优先于 `LANG`。")
SYSTEM_LANG = Variable("LANG", "The system's locale.", "系统区域设置。")

VARIABLES: tuple[Variable, ...] = (
    LANG,
    RUNS,
    HOME,
    HF_ENDPOINT,
    HF_HOME,
    HF_HUB_OFFLINE,
    CUDA_VISIBLE_DEVICES,
    CUDA_DEVICE_ORDER,
    OMP_NUM_THREADS,
    ONEDNN_MAX_CPU_ISA,
    DNNL_MAX_CPU_ISA,
    ONEDNN_DEFAULT_FPMATH_MODE,
    DNNL_DEFAULT_FPMATH_MODE,
    TENSORBOARD_LOGGING_DIR,
    TOKENIZERS_PARALLELISM,
    TOOLS,
    RENDEZVOUS,
    STORE,
    FIRST_RANK,
    RANKS,
    NODE,
    MEETING,
    SLURM_JOB_NUM_NODES,
    ATTEMPT,
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    RESTART_COUNT,
    API_TOKEN,
    VLLM_API_KEY,
    VLLM_NO_USAGE_STATS,
    VLLM_HOST_IP,
    GLOO_SOCKET_IFNAME,
    NCCL_SOCKET_IFNAME,
    PYTHONPATH,
    AWS_ENDPOINT_URL,
    AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY,
    AWS_SESSION_TOKEN,
    HF_TOKEN,
    SSH_CONFIG,
    DEADLINE,
    SLURM_JOB_END_TIME,
    METADATA,
    LAUNCHED,
    WEBHOOK,
    AUTODL_TOKEN,
    NOTIFY_COMMAND,
    NETWORK,
    PIP_INDEX_URL,
    NO_PROXY,
    LC_ALL,
    SYSTEM_LANG,
)


_SECRET_NAME = re.compile(r".*(TOKEN|KEY|SECRET|PASSWORD|ACCESS_KEY_ID|WEBHOOK|NOTIFY_COMMAND)", re.IGNORECASE)
"""Variables whose values are shown nowhere, whoever reads them."""
SECRET = re.compile(
    r"((?<![A-Za-z0-9_-])(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16})|://[^/\s:@]+:[^/\s@]+@)"
)
"""What looks like a token, or a password in an address."""
_LEAST_LETTERS = 6
"""Shorter values are words of ordinary text."""


def without_secrets(text: str) -> str:
    """A foreign library's words, with the values of secret variables and passwords in addresses taken out."""
    return masked(re.sub(r"(://)[^/\s@]+@", r"\1***@", text))


def masked(text: str) -> str:
    """Our own words, without what looks like a token or a password and without the values of secret variables."""
    secrets = {value for name, value in os.environ.items() if _SECRET_NAME.fullmatch(name)}
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _LEAST_LETTERS:
            text = text.replace(value, "***")
    return SECRET.sub("***", text)


def read(variable: Variable, default: str = "") -> str:
    """The variable's value, or `default` where it is unset or empty."""
    return os.environ.get(variable.name) or default


def put(variable: Variable, value: str) -> None:
    """Set a variable for libraries in this process that read it."""
    os.environ[variable.name] = value


def home() -> Path:
    """The folder for what belongs to this user, not to a run."""
    return Path(read(HOME, str(Path.home() / ".stoker")))


def of_machine() -> dict[str, str]:
    """This process' environment, over the one of the container's first process where that may be read."""
    try:
        raw = Path("/proc/1/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        raw = ""
    first = dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)
    return {**first, **os.environ}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process' environment with `extra` on top, for a child process."""
    return {**os.environ, **extra}
