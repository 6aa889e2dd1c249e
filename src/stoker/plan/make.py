"""`make_plan`: from what was asked, the machine and the data to what will happen. Pure."""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

from stoker import env
from stoker.config.run import Run, TrainTokenizer
from stoker.errors import StokerError
from stoker.estimate import memory, ranges
from stoker.facts import failures, intervals, native_figures, proven
from stoker.facts.machine import Machine
from stoker.facts.mirrors import Network
from stoker.facts.platforms import Platform
from stoker.facts.prices import Offer
from stoker.facts.shapes import ResolvedShape
from stoker.generating.generated_step import Alongside
from stoker.plan import (
    budget,
    checks,
    choices,
    clocks,
    ending,
    engine_options,
    money,
    moves,
    remarks,
    search,
    spot,
    strategy,
)
from stoker.plan import data as plan_data
from stoker.plan.choices import Choice
from stoker.plan.data import DataFacts
from stoker.plan.moves import Earlier
from stoker.plan.plan import (
    BatchSplit,
    DataPlan,
    GuardPlan,
    Intervals,
    Memory,
    ModelPlan,
    Plan,
    Reason,
    Rung,
    SafeWay,
    SourcePlan,
    Speed,
    StepCounts,
)
from stoker.plan.search import Constraints, Fits, Way
from stoker.rows import mixture
from stoker.rows.order import Order
from stoker.teaching.taught_step import NOBODY, TeacherFacts

_LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}
_NO_PEER_ACCESS = "RTX40"
"""Cards without peer-to-peer copies: accelerate counts all of a machine, and then starts only with NCCL set for it."""
_HALF_BYTES = 2


@dataclass(frozen=True)
class Inputs:
    """Everything a plan follows from."""

    run: Run
    machine: Machine
    shape: ResolvedShape
    data: DataFacts
    offer: Offer | None = None
    vocab: int | None = None
    """Vocabulary size of the tokenizer, once known; else the run file's or the shape's."""
    highest_token: int | None = None
    """The largest token id of the prepared set, once known."""
    earlier: Earlier | None = None
    """The checkpoint to resume from: its way to cut steps is kept while it fits, because the bits depend on it."""
    out_of_memory: tuple[Rung, ...] = ()
    """Rungs that ran out of memory on this machine, whatever the estimates say."""
    deadline: str | None = None
    """When the platform ends the session."""
    place: str = "local"
    """Key of the failure statistics: a platform's name, its kind, or `local`."""
    platform: Platform | None = None
    """The platform the machine is on, if known."""
    network: Network = field(default_factory=Network)
    """Mirrors and proxies of the machine, if probed."""
    setup: tuple[Reason, ...] = ()
    """How Stoker is installed there, if the machine is not this one."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes, the head first, once known."""
    elsewhere: bool = False
    """The machine is not this one; missing packages are installed there with Stoker."""
    teacher: TeacherFacts = NOBODY
    """What is learned from, where that is another model."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run on a machine, decided, with its figures: the source of a plan and of a row of a comparison."""

    inputs: Inputs
    """Restricted to the devices that train, with the final vocabulary."""
    constraints: Constraints
    way: Way
    choices: tuple[Choice[Any], ...]
    """Choices made before the way, with reasons."""
    workers: int
    intervals: Intervals
    steps: StepCounts

    @functools.cached_property
    def supported(self) -> bool:
        """Whether current builds of torch run on the card."""
        machine = self.inputs.machine
        return machine.kind != "cuda" or machine.compute_capability >= choices.OLDEST_SUPPORTED_CAPABILITY

    @property
    def fits(self) -> Fits:
        """Whether it runs there, the way it is planned."""
        return self.way.verdict if self.supported else "no"

    @property
    def sure(self) -> bool:
        """Whether it surely runs there: as planned, or in the safe way, once the ladder is there."""
        return self.supported and (self.way.verdict == "yes" or self.way.safe is not None)

    @property
    def billed_devices(self) -> int:
        """What a price is for: devices; of machines without one, machines, whatever their processes."""
        machine = self.inputs.machine
        return machine.nodes if machine.kind == "cpu" else self.constraints.devices

    @functools.cached_property
    def tokens_per_second(self) -> tuple[float, float, float]:
        """Over all devices: expected, lowest, highest."""
        expected = self.way.pace.tokens_per_second
        around = ranges.of("speed", self.way.step, self.inputs.machine.card)
        low, high = self.inputs.data.answers.around(around, self.way.pace)
        return expected, expected * low, expected * high

    @property
    def tokens(self) -> float:
        """Tokens of the whole run, and as many more as take the time of what is computed beside."""
        return self.constraints.tokens * (1 + self.inputs.data.tokens_beside) + self.inputs.data.tokens_before

    @functools.cached_property
    def seconds(self) -> tuple[float, float, float]:
        """Training time without start-up and saves: expected, shortest, longest."""
        expected, slowest, fastest = self.tokens_per_second
        low, high = intervals.together((expected / fastest, expected / slowest), self.inputs.data.interval)
        return self.tokens / expected, self.tokens / expected * low, self.tokens / expected * high

    @functools.cached_property
    def disk(self) -> dict[str, int]:
        """Bytes on disk by part: data, checkpoints, the finished model, and what it is made from and merged into."""
        inputs, step, lora = self.inputs, self.way.step, self.inputs.run.native.lora
        whole = step.shape.parameters() * _HALF_BYTES
        return {
            "data": inputs.data.disk_bytes,
            "pipeline": plan_data.pipeline_bytes(inputs.run, inputs.data),
            "checkpoints": choices.checkpoints_at_once(inputs.run) * memory.checkpoint_bytes(step),
            "finished": memory.finished_bytes(step),
            "base": inputs.teacher.stored_bytes + (0 if inputs.shape.origin in ("run_file", "local") else whole),
            "merged": 0 if inputs.run.train.scores or native_figures.not_merged(lora) or not step.adapter else whole,
        }


def find(inputs: Inputs) -> Found:
    """Decide how to run on this machine."""
    run, data = inputs.run, inputs.data
    trains = choices.machine(run, inputs.machine)
    checks.check_stored(run, inputs.shape)
    checks.check(run, trains.value, inputs.shape.shape, elsewhere=inputs.elsewhere)
    inputs = dataclasses.replace(inputs, machine=trains.value, shape=_with_vocab(inputs))
    checks.check_tokens(inputs.shape.shape, inputs.highest_token)
    machine, devices = trains.value, choices.processes(run, trains.value)
    share = _share(run.train.batch, devices)
    precision = choices.precision(run, machine)
    attention = choices.attention(run, machine, precision.value, inputs.shape.shape)
    arrange = choices.arrangement(run, attention.value, inputs.shape.shape)
    loss = choices.loss(run, machine, inputs.shape.shape)
    kernels = choices.kernels(run, machine, inputs.shape.shape)
    workers = choices.workers(run, machine, devices // machine.nodes)
    between_failures = failures.seconds_between(inputs.place, len(machine.devices) * machine.nodes)
    save = choices.save_interval(run, inputs.place, between_failures)
    steps, mixed = _steps(run, data), mixture.of(run, data)
    constraints = Constraints(
        run=run,
        machine=machine,
        shape=inputs.shape.shape,
        longest=data.longest,
        mean=data.tokens / data.sequences,
        tokens=sum(mixed.tokens.values()) if mixed else data.tokens / steps.per_epoch * steps.total,
        precision=precision.value,
        attention=attention.value,
        arrange=arrange.value,
        loss=loss.value,
        kernels=kernels.value,
        devices=devices,
        share=share,
        earlier=inputs.earlier,
        out_of_memory=tuple(rung for rung in inputs.out_of_memory if rung.card == machine.name),
        alongside=Alongside(inputs.teacher, data.answers),
    )
    way = search.find(constraints)
    strategy.check(run, machine, way.strategy, devices, precision.value)
    checks.check_packed(run, way.strategy, inputs.shape.shape)
    _check_host(machine, way)
    exact = choices.exact(run, way.strategy)
    background = choices.background(machine, memory.checkpoint_bytes(way.step))
    return Found(
        inputs=inputs,
        constraints=constraints,
        way=way,
        choices=(trains, precision, attention, arrange, loss, kernels, exact, workers, save, background),
        workers=workers.value,
        intervals=Intervals(
            save=save.value,
            between_failures_seconds=between_failures,
            background=background.value,
            evaluate=run.train.eval_every if data.has_eval else "never",
        ),
        steps=steps,
    )


def make_plan(inputs: Inputs) -> Plan:
    """Decide everything the run file left open."""
    found = find(inputs)
    inputs, constraints, way, steps = found.inputs, found.constraints, found.way, found.steps
    run, data, machine = inputs.run, inputs.data, inputs.machine
    micro, devices = way.micro, constraints.devices
    batch = BatchSplit(effective=run.train.batch, micro=micro, accumulation=constraints.share // micro, devices=devices)
    disk, sources = found.disk, [SourcePlan.model_validate(one) for one in mixture.whole(run, data)]
    decisions = engine_options.Decisions(
        device=machine.kind,
        batch=batch,
        steps=steps,
        precision=constraints.precision,
        attention=constraints.attention,
        kernels=constraints.kernels,
        gradient_checkpointing=way.checkpointing,
        offload_activations=way.step.kept_away,
        workers=found.workers,
        vocab=inputs.shape.shape.vocab,
        ffn=inputs.shape.shape.intermediate,
        strategy=way.strategy,
    )
    seconds = found.seconds
    cost = money.cost(seconds, found.billed_devices, inputs.offer, machine.nodes)
    limits = budget.limits(run, cost, inputs.deadline)
    taken = spot.compare(run, machine, seconds[0], cost, memory.checkpoint_bytes(way.step), devices)
    made = Plan(
        name=run.name or "run",
        card=machine.name,
        device=machine.kind,
        nodes=list(inputs.nodes),
        elastic=run.where.elastic,
        batch=batch,
        precision=constraints.precision,
        strategy=way.strategy,
        gradient_checkpointing=way.checkpointing,
        offload_activations=way.step.kept_away,
        attention=constraints.attention,
        repeat_keys=choices.repeats_keys(machine, constraints.attention, constraints.precision),
        arrange=constraints.arrange,
        loss=constraints.loss,
        kernels=constraints.kernels,
        exact=strategy.exact(run, way.strategy),
        deterministic=run.train.deterministic,
        threads=machine.threads,
        steps=steps,
        data=DataPlan.model_validate(data, from_attributes=True),
        sources=sources,
        model=ModelPlan(
            parameters=inputs.shape.shape.parameters(),
            trainable_parameters=memory.trainable_parameters(inputs.shape.shape, way.step.adapter),
            origin=inputs.shape.origin,
        ),
        intervals=found.intervals,
        limits=limits,
        after=ending.after(run, inputs.platform),
        platform=inputs.platform.name if inputs.platform else "",
        spot=taken,
        guard=GuardPlan(on_bad_step=run.train.on_bad_step, spike=run.train.spike),
        store=run.save.store,
        out_of_memory=list(inputs.out_of_memory),
        memory=_memory(way, machine),
        speed=_pace(found),
        generating=data.answers.figures(way.memory, way.pace, cost, steps.total),
        time_seconds=seconds[0],
        time_seconds_range=seconds[1:],
        cost=cost,
        disk_bytes=sum(disk.values()),
        disk_parts=disk,
        fits=found.fits,
        safe=_safe(found, way.safe) if found.supported and way.safe else None,
        estimated=_estimated(data),
        reasons=[
            remarks.of_batch(batch),
            *remarks.of_steps(run, steps, data.sequences),
            *data.reasons,
            *plan_data.preparing_reasons(run, data, machine.cpu_count),
            *remarks.of_sources(run, data, sources),
            *(choice.reason for choice in found.choices),
            *remarks.of_way(constraints, way),
            strategy.reason(run, way.strategy, kept=search.keeps_bits(constraints, way)),
            *remarks.not_planned(run, way, constraints.precision),
            *remarks.of_model(run, inputs.shape),
            *checks.family_reasons(run, machine, inputs.shape.shape),
            *remarks.of_machine(machine),
            *(Reason(**vars(one)) for one in proven.said(machine, deterministic=run.train.deterministic)),
            *budget.reasons(run, limits, cost, machine.name, seconds[0]),
            *ending.reasons(run, inputs.platform),
            *spot.reasons(taken, cost, machine, seconds[0], devices),
            *(Reason(about=f"env.{one.serves}", key=one.key, fields=one.fields) for one in inputs.network.choices),
            *inputs.setup,
            *remarks.of_support(machine, supported=found.supported),
            *remarks.of_network(machine, way),
            *clocks.reasons(
                machine.name, devices, seconds, disk, machine.nodes, None if machine.examined else inputs.offer
            ),
        ],
        argv=_program(way.strategy, devices // machine.nodes),
        env={**_environment(run, machine, way.strategy), **inputs.network.environment},
        native=engine_options.options(run, decisions),
    )
    resume = moves.resume(inputs.earlier, made, machine, elsewhere=inputs.elsewhere)
    return made.model_copy(update={"resume": resume, "reasons": [*made.reasons, *moves.reasons(resume, made)]})


def _share(batch: int, devices: int) -> int:
    """Sequences per device and step; a batch that does not divide is refused with the nearest ones."""
    if batch % devices:
        below = batch - batch % devices
        nearest = [b for b in (below, below + devices) if b > 0]
        raise StokerError("STK201", batch=batch, devices=devices, nearest=nearest)
    return batch // devices


_WHILE_BUILDING = 1.3
"""Main memory that building a model takes, in models: the bar that four ranks keep, with plain and 4-bit weights."""


def _check_host(machine: Machine, way: Way) -> None:
    """Require main memory for a whole checkpoint and, with sharding, the whole model.

    With ZeRO in every process, and where processes cannot share what one of them builds.
    """
    if not machine.examined or machine.kind != "cuda":
        return
    copies = way.step.devices_per_node if way.strategy.startswith("zero") or not machine.shares_memory else 1
    whole = memory.whole_weight_bytes(way.step) + way.alongside.teacher.whole_bytes(way.step)
    needed = round(copies * whole * _WHILE_BUILDING)
    if way.step.weight_parts > 1 and needed > machine.memory_bytes:
        gib = (f"{size / 2**30:.0f}" for size in (needed, machine.memory_bytes))
        raise StokerError("STK220", needed=next(gib), available=next(gib), copies=copies)
    copy = memory.checkpoint_bytes(way.step)
    if copy > machine.memory_bytes:
        raise StokerError("STK225", copy=f"{copy / 1e9:.0f}", memory=f"{machine.memory_bytes / 1e9:.0f}")


def _memory(way: Way, machine: Machine) -> Memory:
    used = way.memory
    return Memory(
        peak_allocated_bytes=used.allocated,
        peak_reserved_bytes=used.reserved,
        peak_device_bytes=used.device,
        device_bytes_range=way.memory_range,
        available_bytes=machine.memory_per_device,
        parts=used.parts,
        moment=used.moment,
        optimizer_bytes=memory.optimizer_bytes(way.step),
        gradient_sum_bytes=memory.gradient_bytes(way.step) * (way.step.gradient_sets - 1) // way.step.gradient_sets,
    )


def _safe(found: Found, way: Way) -> SafeWay:
    seconds = found.tokens / way.pace.tokens_per_second
    inputs = found.inputs
    cost = money.cost((seconds, seconds, seconds), found.billed_devices, inputs.offer, inputs.machine.nodes)
    return SafeWay(
        strategy=way.strategy,
        gradient_checkpointing=way.checkpointing,
        micro=way.micro,
        device_bytes_range=way.memory_range,
        time_seconds=seconds,
        cost=cost.amount if cost else None,
    )


def _pace(found: Found) -> Speed:
    expected, lowest, highest = found.tokens_per_second
    return Speed(
        tokens_per_second=expected,
        tokens_per_second_range=(lowest, highest),
        step_seconds=found.way.pace.step_seconds,
        parts=found.way.pace.parts,
    )


def _steps(run: Run, data: DataFacts) -> StepCounts:
    per_epoch = Order(data.digest, run.train.seed, data.sequences, run.train.batch).steps_per_epoch
    total = mixture.total_steps(run, data)
    warmup = engine_options.warmup_steps(run, total)
    return StepCounts(total=total, per_epoch=per_epoch, epochs=-(-total // per_epoch), warmup=warmup)


def _with_vocab(inputs: Inputs) -> ResolvedShape:
    """The shape with the final vocabulary."""
    if inputs.shape.origin != "run_file":
        return inputs.shape
    shape = inputs.shape.shape
    tokenizer = inputs.run.tokenizer
    vocab = inputs.vocab or (tokenizer.vocab if isinstance(tokenizer, TrainTokenizer) else shape.vocab)
    return dataclasses.replace(inputs.shape, shape=dataclasses.replace(shape, vocab=max(vocab, shape.vocab)))


def _estimated(data: DataFacts) -> list[str]:
    physics = ["memory", "speed", "time_seconds", "cost", "disk_bytes"]
    return [*physics, "data", "steps"] if data.estimated else physics


def single_program(run: Run, found: Machine, network: Network) -> tuple[list[str], dict[str, str]] | None:
    """What a plan would start, and with which variables, where one process trains: so much is certain before it."""
    trains = choices.machine(run, found).value
    if choices.processes(run, trains) != 1:
        return None
    return _program("single", 1), {**_environment(run, trains, "single"), **network.environment}


def _program(chosen: str, here: int) -> list[str]:
    """The training program; several processes of one machine are started by torchrun, with a file rendezvous."""
    program = ["-m", "stoker.engine.train"]
    if chosen == "single":
        return program
    meeting = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]
    # On a stop request ranks finish their step and commit; torchrun's default kills them after 30 seconds.
    meeting += ["--shutdown-timeout", "1800"]
    return ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(here), *meeting, *program]


def _environment(run: Run, machine: Machine, chosen: str) -> dict[str, str]:
    """Set before torch starts: thread count and hash seed are part of exactness."""
    settings = {"OMP_NUM_THREADS": str(machine.threads), "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    if chosen != "single":
        # torchrun opens no TCP store of its own.
        settings |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONUTF8": "1"}
        settings |= {"DS_ACCELERATOR": "cpu"} if machine.kind == "cpu" else {}
    if chosen != "single" and machine.nodes == 1:
        # On one machine ranks use loopback only; of several nodes, each selects its own interface.
        settings |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _LOOPBACK.get(machine.system, "lo"))
    if machine.name.startswith(_NO_PEER_ACCESS):
        settings |= {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    if machine.kind == "cuda":
        # Rows differ in length: with fixed segments, memory freed by a shorter row cannot hold a longer one.
        settings["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if run.train.deterministic and machine.kind == "cuda":
        # Read by cuBLAS and by transformers when the first kernel runs (engine/train.py switches the rest).
        settings |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
    if run.where.gpus == 0 or (machine.kind == "cuda" and machine.examined and machine.nodes == 1):
        # torch uses every visible card. By UUID: CUDA may number cards differently from the driver.
        settings[env.CUDA_VISIBLE_DEVICES.name] = ",".join(device.uuid for device in machine.devices)
    return settings
