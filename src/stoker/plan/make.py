"""`make_plan`: from what was asked, the machine and the data to what will happen. Pure."""

import dataclasses
import itertools
from dataclasses import dataclass

from stoker import env
from stoker.config import values
from stoker.config.run import Run, TrainTokenizer
from stoker.errors import StokerError
from stoker.facts import failures
from stoker.facts.machine import Machine
from stoker.facts.prices import Offer
from stoker.facts.shapes import ResolvedShape
from stoker.plan import checks, choices, memory, native, speed, strategy
from stoker.plan.data import DataFacts
from stoker.plan.order import Order
from stoker.plan.plan import (
    Batch,
    Cost,
    DataPlan,
    Guard,
    Intervals,
    Limits,
    Memory,
    ModelPlan,
    Plan,
    Reason,
    Rung,
    Steps,
)

_LADDER_CHECKPOINTING = (False, True)
_LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}
_NO_PEER_ACCESS = "RTX40"
"""Cards whose drivers offer no direct copies between them; accelerate refuses to start unless NCCL is told."""


@dataclass(frozen=True)
class Inputs:
    """Everything a plan follows from."""

    run: Run
    machine: Machine
    shape: ResolvedShape
    data: DataFacts
    offer: Offer | None = None
    vocab: int | None = None
    """The tokenizer's size, once it is known; else the run file's or the shape's."""
    micro: int | None = None
    """The micro batch of an earlier attempt: kept while it fits, because the bits of a step follow from it."""
    out_of_memory: tuple[Rung, ...] = ()
    """Rungs that ran out of memory on this machine: what estimates say of them is wrong."""
    deadline: str | None = None
    """When the platform ends the session."""
    place: str = "local"
    """Where failures are counted: a platform's name, its kind, or `local`."""


def make_plan(inputs: Inputs) -> Plan:
    """Decide everything the run file left open."""
    run, data = inputs.run, inputs.data
    trains = choices.machine(run, inputs.machine)
    checks.check(run, trains.value, inputs.shape.shape)
    inputs = dataclasses.replace(inputs, machine=trains.value, shape=_with_vocab(inputs))
    machine, devices = trains.value, choices.processes(run, trains.value)
    share = _share(run.train.batch, devices)
    precision = choices.precision(run, machine)
    attention = choices.attention(run, machine, precision.value)
    arrange = choices.arrangement(run, attention.value)
    workers = choices.workers(run, machine, devices)
    between_failures = failures.seconds_between(inputs.place, len(machine.devices))
    save = choices.save_interval(run, inputs.place, between_failures)
    background = choices.background(machine, memory.checkpoint_bytes(inputs.shape.shape, run))
    size = _size(inputs, share, precision.value)
    micro, checkpointing, used, chosen = size.micro, size.checkpointing, size.memory, size.strategy
    strategy.check(run, machine, chosen, devices, precision.value)
    _check_host(inputs, chosen, devices, precision.value)
    exact = choices.exact(run, chosen)
    batch = Batch(effective=run.train.batch, micro=micro, accumulation=share // micro, devices=devices)
    steps = _steps(run, data)
    decisions = native.Decisions(
        device=machine.kind,
        batch=batch,
        steps=steps,
        precision=precision.value,
        attention=attention.value,
        gradient_checkpointing=checkpointing,
        workers=workers.value,
        vocab=inputs.shape.shape.vocab,
        ffn=inputs.shape.shape.intermediate,
        strategy=chosen,
    )
    pace = speed.estimate(
        run,
        inputs.shape.shape,
        machine,
        batch,
        data.tokens / steps.per_epoch,
        recompute=checkpointing,
    )
    seconds = speed.total_seconds(pace, steps)
    money = speed.cost(seconds, batch, inputs.offer)
    limits = _limits(inputs, money, devices)
    supported = machine.kind != "cuda" or machine.compute_capability >= choices.OLDEST_SUPPORTED_CAPABILITY
    reasons = [c.reason for c in (trains, precision, attention, arrange, exact, workers, save, background)]
    reasons += size.reasons
    return Plan(
        name=run.name or "run",
        card=machine.name,
        device=machine.kind,
        batch=batch,
        precision=precision.value,
        strategy=chosen,
        gradient_checkpointing=checkpointing,
        attention=attention.value,
        arrange=arrange.value,
        exact=exact.value,
        deterministic=run.train.deterministic,
        threads=machine.threads,
        steps=steps,
        data=DataPlan(sequences=data.sequences, tokens=data.tokens, longest=data.longest, digest=data.digest),
        model=ModelPlan(
            parameters=inputs.shape.shape.parameters(),
            trainable_parameters=memory.trainable_parameters(inputs.shape.shape, run),
            origin=inputs.shape.origin,
        ),
        intervals=Intervals(
            save=save.value,
            between_failures_seconds=between_failures,
            background=background.value,
            evaluate=run.train.eval_every if data.has_eval else "never",
        ),
        limits=limits,
        guard=Guard(on_bad_step=run.train.on_bad_step, spike=run.train.spike),
        store=run.save.store,
        out_of_memory=list(inputs.out_of_memory),
        memory=used,
        speed=pace,
        time_seconds=seconds,
        cost=money,
        disk_bytes=_disk_bytes(inputs),
        fits=memory.fits(used) and supported,
        estimated=_estimated(data),
        reasons=[
            _batch_reason(batch),
            *reasons,
            strategy.reason(run, chosen),
            *_machine_reasons(machine),
            *_limit_reasons(run, limits, money, devices),
            *_support_reasons(machine, supported=supported),
        ],
        argv=_program(chosen, devices),
        env=_environment(run, machine, chosen),
        native=native.options(run, decisions),
    )


def _share(batch: int, devices: int) -> int:
    """Sequences per device and step, exactly; else the nearest batches are named."""
    if batch % devices:
        below = batch - batch % devices
        nearest = [b for b in (below, below + devices) if b > 0]
        raise StokerError("STK201", batch=batch, devices=devices, nearest=", ".join(map(str, nearest)))
    return batch // devices


@dataclass(frozen=True)
class _Size:
    """How the work is cut to the memory of a device, and what it needs."""

    strategy: str
    checkpointing: bool
    micro: int
    memory: Memory
    reasons: list[Reason]


def _size(inputs: Inputs, share: int, precision: str) -> _Size:
    """By the ladder of law 1: smaller micro batch first, then recompute, then share out."""
    run, machine = inputs.run, inputs.machine
    asked = run.where.gradient_checkpointing
    recompute = _LADDER_CHECKPOINTING if asked == "auto" else (bool(asked),)
    sizes = choices.micro_candidates(run, machine, share, inputs.micro)
    strategies = strategy.candidates(run, machine, choices.processes(run, machine))
    rungs = list(itertools.product(strategies, recompute, sizes))
    failed = [rung for rung in inputs.out_of_memory if rung.card == machine.name]
    for chosen, checkpointing, micro in rungs:
        used = _memory(inputs, share, micro, precision, chosen, checkpointing=checkpointing)
        if memory.fits(used) and not _failed(inputs, used, share, precision, failed):
            reasons = _size_reasons(inputs, micro, checkpointing=checkpointing)
            return _Size(chosen, checkpointing, micro, used, [*reasons, *_failed_reasons(failed)])
    if failed:
        raise StokerError("STK675", micro=failed[-1].micro, step=failed[-1].step, tried=len(failed))
    reasons = _size_reasons(inputs, micro, checkpointing=checkpointing, smallest=True)
    return _Size(
        chosen, checkpointing, micro, used, [*reasons, Reason(about="fits", key="why.fits.not", fields=_gib(used))]
    )


def _failed(inputs: Inputs, used: Memory, share: int, precision: str, failed: list[Rung]) -> bool:
    """Whether a rung needs as much as one that ran out of memory."""
    tried = (
        _memory(inputs, share, rung.micro, precision, rung.strategy, checkpointing=rung.gradient_checkpointing)
        for rung in failed
    )
    return any(used.peak_allocated_bytes >= one.peak_allocated_bytes for one in tried)


def _failed_reasons(failed: list[Rung]) -> list[Reason]:
    return [Reason(about="out_of_memory", key="why.out_of_memory", fields=rung.model_dump()) for rung in failed]


def _limits(inputs: Inputs, money: Cost | None, devices: int) -> Limits:
    """Budgets as seconds: the supervisor counts nothing else."""
    budget = inputs.run.budget
    lasts = None
    if budget.money and money:
        amount, currency = values.money(budget.money)
        lasts = amount / (money.price_per_hour * devices) * 3600 if currency == money.currency else None
    return Limits(
        time_seconds=values.duration_seconds(budget.time) if budget.time else None,
        money_seconds=lasts,
        deadline=inputs.deadline,
    )


def _limit_reasons(run: Run, limits: Limits, money: Cost | None, devices: int) -> list[Reason]:
    reasons = []
    if limits.time_seconds is not None:
        reasons.append(Reason(about="limits.time_seconds", key="why.asked", fields={"word": "budget.time"}))
    if limits.money_seconds is not None and money:
        fields = {
            "hours": f"{limits.money_seconds / 3600:.1f}",
            "money": run.budget.money,
            "price": f"{money.price_per_hour:.2f} {money.currency}",
            "devices": devices,
            "source": money.source,
        }
        reasons.append(Reason(about="limits.money_seconds", key="why.limit.money", fields=fields))
    if limits.deadline:
        reasons.append(Reason(about="limits.deadline", key="why.limit.deadline", fields={"deadline": limits.deadline}))
    return reasons


def _memory(inputs: Inputs, share: int, micro: int, precision: str, chosen: str, *, checkpointing: bool) -> Memory:
    devices = choices.processes(inputs.run, inputs.machine)
    load = memory.Load(
        shape=inputs.shape.shape,
        run=inputs.run,
        precision=precision,
        device=inputs.machine.kind,
        micro=micro,
        length=inputs.data.longest,
        gradient_checkpointing=checkpointing,
        gradient_sets=memory.gradient_sets(share // micro, exact=strategy.exact(inputs.run, chosen)),
        weight_parts=strategy.weight_parts(chosen, devices),
        state_parts=strategy.state_parts(chosen, devices),
    )
    return memory.estimate(load, inputs.machine.memory_per_device)


def _check_host(inputs: Inputs, chosen: str, devices: int, precision: str) -> None:
    """Where weights are shared out, every process builds the whole model in main memory first."""
    machine, run = inputs.machine, inputs.run
    if not machine.examined or machine.kind != "cuda" or strategy.weight_parts(chosen, devices) == 1:
        return
    whole = memory.whole_weight_bytes(inputs.shape.shape, run, precision)
    if devices * whole > machine.memory_bytes:
        needed, there = (f"{size / 2**30:.0f}" for size in (devices * whole, machine.memory_bytes))
        raise StokerError("STK220", needed=needed, available=there, devices=devices)


def _size_reasons(inputs: Inputs, micro: int, *, checkpointing: bool, smallest: bool = False) -> list[Reason]:
    run = inputs.run
    if run.where.micro != "auto":
        micro_key = "why.asked"
    elif smallest:
        micro_key = "why.micro.smallest"
    elif micro == inputs.micro:
        micro_key = "why.micro.earlier"
    else:
        micro_key = "why.micro.cpu" if inputs.machine.kind == "cpu" else "why.micro.largest"
    reasons = [Reason(about="batch.micro", key=micro_key, fields={"micro": micro, "word": "where.micro"})]
    if run.where.gradient_checkpointing != "auto":
        key = "why.asked"
    else:
        key = "why.checkpointing.on" if checkpointing else "why.checkpointing.off"
    fields = {"word": "where.gradient_checkpointing"}
    return [*reasons, Reason(about="gradient_checkpointing", key=key, fields=fields)]


def _gib(used: Memory) -> dict[str, str]:
    return {
        "needed": f"{used.peak_reserved_bytes / 2**30:.1f}",
        "available": f"{used.available_bytes / 2**30:.1f}",
    }


def _steps(run: Run, data: DataFacts) -> Steps:
    order = Order(data.digest, run.train.seed, data.sequences, run.train.batch)
    total = run.train.steps or run.train.epochs * order.steps_per_epoch
    epochs = -(-total // order.steps_per_epoch)
    return Steps(total=total, per_epoch=order.steps_per_epoch, epochs=epochs, warmup=native.warmup_steps(run, total))


def _with_vocab(inputs: Inputs) -> ResolvedShape:
    """The shape with the vocabulary that will really be trained."""
    if inputs.shape.origin != "run_file":
        return inputs.shape
    shape = inputs.shape.shape
    tokenizer = inputs.run.tokenizer
    vocab = inputs.vocab or (tokenizer.vocab if isinstance(tokenizer, TrainTokenizer) else shape.vocab)
    return dataclasses.replace(inputs.shape, shape=dataclasses.replace(shape, vocab=max(vocab, shape.vocab)))


def _disk_bytes(inputs: Inputs) -> int:
    """Prepared data, the checkpoints kept and one being written, and the finished model."""
    one = memory.checkpoint_bytes(inputs.shape.shape, inputs.run)
    kept = inputs.run.save.keep + bool(inputs.run.save.best) + bool(inputs.run.save.store)
    final = memory.trainable_parameters(inputs.shape.shape, inputs.run) * 4
    return inputs.data.disk_bytes + (kept + 1) * one + final


def _estimated(data: DataFacts) -> list[str]:
    physics = ["memory", "speed", "time_seconds", "cost", "disk_bytes"]
    return [*physics, "data", "steps"] if data.estimated else physics


def _batch_reason(batch: Batch) -> Reason:
    return Reason(about="batch", key="why.batch", fields=batch.model_dump())


def _machine_reasons(machine: Machine) -> list[Reason]:
    """How many threads, and whether memory is pinned."""
    pinned = "why.pinned.cuda" if machine.kind == "cuda" else "why.pinned.none"
    return [
        Reason(about="threads", key="why.threads", fields={"threads": machine.threads, "cpus": machine.cpu_count}),
        Reason(about="native.trainer.dataloader_pin_memory", key=pinned, fields={}),
    ]


def _support_reasons(machine: Machine, *, supported: bool) -> list[Reason]:
    if supported:
        return []
    fields = {"card": machine.name, "capability": machine.compute_capability}
    return [Reason(about="fits", key="why.card.old", fields=fields)]


def _program(chosen: str, devices: int) -> list[str]:
    """The training program; several processes by torchrun, which meet in a file: nothing listens on the network."""
    program = ["-m", "stoker.engine.train"]
    if chosen == "single":
        return program
    meeting = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]
    # Asked to end, ranks finish their step and commit; torchrun would kill them after 30 seconds.
    meeting += ["--shutdown-timeout", "1800"]
    return ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(devices), *meeting, *program]


def _environment(run: Run, machine: Machine, chosen: str) -> dict[str, str]:
    """Set before torch starts: thread count and hash seed are part of exactness."""
    settings = {
        "OMP_NUM_THREADS": str(machine.threads),
        "PYTHONHASHSEED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if chosen != "single":
        # On one machine ranks talk over loopback only, and torchrun opens no store of its own to the network.
        loopback = _LOOPBACK.get(machine.system, "lo")
        settings |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback, "PYTHONUTF8": "1"}
        settings |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        settings |= {"DS_ACCELERATOR": "cpu"} if machine.kind == "cpu" else {}
    if chosen != "single" and machine.name.startswith(_NO_PEER_ACCESS):
        settings |= {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    if run.train.deterministic and machine.kind == "cuda":
        settings["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if run.where.gpus == 0 or (machine.kind == "cuda" and machine.examined):
        # Torch uses every card it sees. By UUID: CUDA may number cards otherwise than the driver does.
        settings[env.CUDA_VISIBLE_DEVICES.name] = ",".join(device.uuid for device in machine.devices)
    return settings
