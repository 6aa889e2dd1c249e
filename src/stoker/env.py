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
    "你自己的价格。默认：`~/.stoker`。",
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
XDG_CACHE_HOME = Variable(
    "XDG_CACHE_HOME",
    "Folder of all caches; without `HF_HOME`, Hugging Face's is in it. Default: `~/.cache`.",
    "所有缓存的文件夹；未设置 `HF_HOME` 时，Hugging Face 的缓存在它里面。默认：`~/.cache`。",
)
HF_HUB_OFFLINE = Variable(
    "HF_HUB_OFFLINE",
    "`1` keeps Stoker and Hugging Face libraries off the network.",
    "设为 `1` 时，Stoker 与 Hugging Face 库都不访问网络。",
)
HF_HUB_DISABLE_XET = Variable(
    "HF_HUB_DISABLE_XET",
    "`1` keeps Hugging Face's client from its newer transfer service; set by Stoker for mirrors, which have none.",
    "设为 `1` 时，Hugging Face 客户端不使用它的新传输服务；使用镜像时由 Stoker 设置，因为镜像没有这项服务。",
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
    "`verifiers`, `lm_eval`, `kaggle`). Default: `~/.stoker/tools`.",
    "存放独立工具环境（`vllm`、`llamacpp`、`llmcompressor`、`datatrove`、`verifiers`、`lm_eval`、`kaggle`）的文件夹。默认：`~/.stoker/tools`。",
)
API_TOKEN = Variable(
    "STOKER_API_TOKEN",
    "The token that `stoker serve` asks clients for. Default: a random one, kept in the run directory "
    "(`serve.token`, readable by its owner only).",
    "`stoker serve` 要求客户端出示的令牌。未设置时随机生成，并保存在运行目录中（`serve.token`，仅本人可读）。",
)
OPENAI_BASE_URL = Variable(
    "OPENAI_BASE_URL",
    "Endpoint of `stoker eval --judge openai:MODEL`, `https://.../v1`. No default: prompts and answers go there.",
    "`stoker eval --judge openai:MODEL` 询问评审模型的接口地址：`https://.../v1`。没有默认值：提示词和回答会发送到那里。",
)
OPENAI_API_KEY = Variable("OPENAI_API_KEY", "The token of that endpoint.", "该接口的令牌。")
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
EARLY = Variable(
    "STOKER_EARLY",
    "Set by Stoker: this program was started before its plan was made, and waits until it is told to go on.",
    "由 Stoker 设置：本程序在计划制定之前启动，等待继续执行的通知。",
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
    "Hugging Face access token: for a store `hf://...`, `stoker publish` and gated models. Never written anywhere.",
    "访问 Hugging Face 的令牌，用于 `hf://...` 存储、`stoker publish` 和需要授权的模型。不会被写到任何地方。",
)
HUGGING_FACE_HUB_TOKEN = Variable(
    "HUGGING_FACE_HUB_TOKEN",
    "The older name of `HF_TOKEN`. With either, Stoker chooses no mirror of a third party.",
    "`HF_TOKEN` 的旧名字。设置了其中任何一个，Stoker 都不会选用第三方镜像。",
)
HF_TOKEN_PATH = Variable(
    "HF_TOKEN_PATH",
    "The file in which `hf auth login` keeps its token. Default: `token` in `HF_HOME`.",
    "`hf auth login` 保存令牌的文件。默认：`HF_HOME` 里的 `token`。",
)
HF_HUB_DISABLE_IMPLICIT_TOKEN = Variable(
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "Set by Stoker where a mirror is used that would see the token of `hf auth login`: it is not sent.",
    "由 Stoker 设置：所用镜像会看到 `hf auth login` 的令牌时，不发送令牌。",
)
HF_OIDC_RESOURCE = Variable(
    "HF_OIDC_RESOURCE",
    "What Hugging Face's client asks a short-lived token for. With it, Stoker chooses no mirror of a third party.",
    "Hugging Face 客户端为它申请短期令牌。设置之后，Stoker 不会选用第三方镜像。",
)
MODELSCOPE_API_TOKEN = Variable(
    "MODELSCOPE_API_TOKEN",
    "ModelScope access token, for `stoker publish --to modelscope:owner/name`. Never written anywhere.",
    "访问 ModelScope 的令牌，用于 `stoker publish --to modelscope:owner/name`。不会被写到任何地方。",
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
    "A URL that is notified how a run ended and what happens to the machine: JSON by POST, or the address of a group "
    "robot of Feishu, DingTalk or WeCom. Never written anywhere.",
    "接收通知的地址：运行如何结束、机器如何处理，以 POST 发送 JSON；也可以是飞书、钉钉或企业微信群机器人的地址。"
    "不会被写到任何地方。",
)
WEBHOOK_SECRET = Variable(
    "STOKER_WEBHOOK_SECRET",
    "The secret of a Feishu or DingTalk robot that checks signatures. Never written anywhere.",
    "飞书或钉钉机器人签名校验（加签）的密钥。不会被写到任何地方。",
)
AUTODL_TOKEN = Variable(
    "STOKER_AUTODL_TOKEN",
    "The developer token of your AutoDL account, for power, price, balance and messages. Sent to AutoDL only, never "
    "written anywhere.",
    "AutoDL 账号的开发者令牌，用于开关机、查询价格和余额、发送消息。只发给 AutoDL，不会被写到任何地方。",
)
NOTIFY_COMMAND = Variable(
    "STOKER_NOTIFY_COMMAND",
    "A command that gets the same notification on stdin, such as `mail -s stoker me@example.org`. No shell.",
    "从标准输入接收同样消息的命令，例如 `mail -s stoker me@example.org`。不经过 shell。",
)
NETWORK = Variable(
    "STOKER_NETWORK",
    "Set by Stoker on another machine: which mirrors are used there and why, for the plan.",
    "由 Stoker 在其他机器上设置：那里使用哪些镜像以及原因，写入计划。",
)
AGREED = Variable(
    "STOKER_AGREED",
    "Set by `stoker mcp`: SHA-256 of the run file whose plan was agreed to; `plan` and `train` refuse another text.",
    "由 `stoker mcp` 设置：已同意其计划的运行文件的 SHA-256；文件内容不同时，`plan` 和 `train` 拒绝执行。",
)
WANDB_API_KEY = Variable(
    "WANDB_API_KEY",
    "Weights & Biases' key. Before a run with `report_to: wandb` Stoker looks whether there is one; it never reads it.",
    "Weights & Biases 的密钥。`report_to: wandb` 的运行开始前，Stoker 只检查它是否存在，不读取内容。",
)
WANDB_MODE = Variable(
    "WANDB_MODE",
    "`offline` or `disabled`: Weights & Biases needs no account.",
    "设为 `offline` 或 `disabled` 时，Weights & Biases 不需要账号。",
)
WANDB_BASE_URL = Variable(
    "WANDB_BASE_URL",
    "A Weights & Biases server of your own; its login is looked for.",
    "自建的 Weights & Biases 服务器；检查登录时查找它的记录。",
)
NETRC = Variable(
    "NETRC",
    "The file in which `wandb login` keeps its key. Default: `~/.netrc`.",
    "`wandb login` 保存密钥的文件。默认：`~/.netrc`。",
)
SWANLAB_API_KEY = Variable(
    "SWANLAB_API_KEY",
    "SwanLab's key. Before a run with `report_to: swanlab` Stoker looks whether there is one; it never reads it.",
    "SwanLab 的密钥。`report_to: swanlab` 的运行开始前，Stoker 只检查它是否存在，不读取内容。",
)
SWANLAB_MODE = Variable(
    "SWANLAB_MODE",
    "`local`, `offline` or `disabled`: SwanLab needs no account.",
    "设为 `local`、`offline` 或 `disabled` 时，SwanLab 不需要账号。",
)
SWANLAB_SAVE_DIR = Variable(
    "SWANLAB_SAVE_DIR",
    "SwanLab's folder, in which `swanlab login` keeps its key. Default: `~/.swanlab`.",
    "SwanLab 的文件夹，`swanlab login` 把密钥保存在里面。默认：`~/.swanlab`。",
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
    XDG_CACHE_HOME,
    HF_HUB_OFFLINE,
    HF_HUB_DISABLE_XET,
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
    EARLY,
    RANK,
    WORLD_SIZE,
    LOCAL_RANK,
    RESTART_COUNT,
    API_TOKEN,
    OPENAI_BASE_URL,
    OPENAI_API_KEY,
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
    HUGGING_FACE_HUB_TOKEN,
    HF_TOKEN_PATH,
    HF_HUB_DISABLE_IMPLICIT_TOKEN,
    HF_OIDC_RESOURCE,
    MODELSCOPE_API_TOKEN,
    SSH_CONFIG,
    DEADLINE,
    SLURM_JOB_END_TIME,
    METADATA,
    LAUNCHED,
    WEBHOOK,
    WEBHOOK_SECRET,
    AUTODL_TOKEN,
    NOTIFY_COMMAND,
    NETWORK,
    AGREED,
    WANDB_API_KEY,
    WANDB_MODE,
    WANDB_BASE_URL,
    NETRC,
    SWANLAB_API_KEY,
    SWANLAB_MODE,
    SWANLAB_SAVE_DIR,
    PIP_INDEX_URL,
    NO_PROXY,
    LC_ALL,
    SYSTEM_LANG,
)


_SECRET_NAME = re.compile(r".*(TOKEN|KEY|SECRET|PASSWORD|ACCESS_KEY_ID|WEBHOOK|NOTIFY_COMMAND)", re.IGNORECASE)
"""Variables whose values are shown nowhere, whoever reads them."""
SECRET = re.compile(
    r"((?<![A-Za-z0-9_-])(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|ms-[0-9a-f]{8}-[0-9a-f-]{20,}|AKIA[0-9A-Z]{16})|://[^/\s:@]+:[^/\s@]+@)"
)
"""What looks like a token, or a password in an address."""
_LEAST_LETTERS = 6
"""Shorter values are words of ordinary text."""


def without_secrets(text: str) -> str:
    """A foreign library's words, with the values of secret variables and passwords in addresses taken out."""
    return masked(re.sub(r"(://)[^/\s@]+@", r"\1***@", text))


def masked(text: str) -> str:
    """Our own words, without what looks like a token or a password and without the values of secret variables."""
    for value in sorted(secret_values(), key=len, reverse=True):
        text = text.replace(value, "***")
    return SECRET.sub("***", text)


def secret_values() -> set[str]:
    """The values of secret variables that are long enough to be told from words."""
    found = {value.strip() for name, value in os.environ.items() if _SECRET_NAME.fullmatch(name)}
    return {value for value in found if len(value) >= _LEAST_LETTERS}


def read(variable: Variable, default: str = "") -> str:
    """The variable's value, or `default` where it is unset or empty."""
    return os.environ.get(variable.name) or default


def put(variable: Variable, value: str) -> None:
    """Set a variable for libraries in this process that read it."""
    os.environ[variable.name] = value


def home() -> Path:
    """The folder for what belongs to this user, not to a run."""
    return Path(read(HOME, str(Path.home() / ".stoker")))


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process' environment with `extra` on top, for a child process."""
    return {**os.environ, **extra}
