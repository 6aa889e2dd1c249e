# Three tiers of checks: `just quick` for each commit, `just check` = CI, `just nightly` at the end of an issue. A test's
# tier follows from its folder (tests/README.md). Everything else is longer, or makes something.
set positional-arguments
export OMP_NUM_THREADS := "1"
export HF_HUB_OFFLINE := "1"
# Compiled modules are kept, whatever the shell says: a process of ours imports for 9 s instead of 34 without them.
export PYTHONDONTWRITEBYTECODE := ""
# A file's tests stay in one process, in the order tests/tiers.py gives: long files first.
parallel := "--dist loadfile --no-loadscope-reorder"

# Exactly what CI runs: lint, documentation, and the tests of what must never break.
check: lint docs tests

# The tests of `check` alone, three at a time on two cores: for a third of their time they wait for clocks and servers.
tests:
    pytest -q -n 3 {{parallel}} tests --ignore=tests/nightly

# For every commit, a minute: lint, and the tests without torch.
quick: lint
    pytest -q -n 3 --dist worksteal tests/unit tests/cli tests/architecture

# Every test there is, folder by folder, resumable (docs/evidence/nightly.json), two hours and a half: `just nightly FOLDER...`.
nightly *args:
    python tools/nightly.py "$@"

lint:
    ruff format --check .
    ruff check .
    python tools/check_types.py
    lint-imports
    python tools/known_options.py --check
    python tools/reference.py --check

# Equivalence classes of runs must give one loss trajectory.
invariant:
    pytest -q -n 2 {{parallel}} tests/invariant

# Tests of some folders or files, in parallel: `just test tests/engine`.
test *args:
    pytest -q -n 2 {{parallel}} "$@"

# Format, and fix what ruff can fix.
fmt:
    ruff format .
    ruff check --fix .

# Install the tested combination into this environment.
setup:
    bash tools/setup.sh

# Make the environments of vLLM, llama.cpp, llmcompressor and others (STOKER_TOOLS), or of those named.
tools *names:
    bash tools/setup_tools.sh "$@"

# Generated files: reference pages, known options, frozen surface.
generate:
    python tools/known_options.py
    python tools/sort_messages.py
    python tests/architecture/test_surface.py --write
    python tools/reference.py
    python -m stoker guide --skill skills

# A scripted agent and `stoker mcp`: thirty tasks (docs/evidence/agents.json).
agents *args:
    python benchmarks/agents.py "$@"

# Speed against the bare Trainer, >= 20 alternating pairs (docs/evidence/overhead.json).
overhead *args:
    python benchmarks/overhead.py "$@"

# One training by Stoker, the bare Trainer, Unsloth and LLaMA-Factory, on the same rows (docs/evidence/gpu.json); not yet run on a GPU.
gpu *args:
    python benchmarks/gpu.py "$@"

# What the canonical sum costs two processes, and what ranks send (docs/evidence/exactness.json); root, for the counters.
exactness *args:
    python benchmarks/exactness.py "$@"

# Every test that compares bits, at every level of instructions this processor has (docs/evidence/bits.json), hours.
bits *args:
    python benchmarks/bits.py "$@"

# Conversation shapes by every chat template of `trl`: right, refused or wrong (docs/evidence/rows.json), a minute.
rows *args:
    python benchmarks/rows.py "$@"

# Tokens by script of ten vocabularies, from packages of npm, pip and apt (docs/evidence/token_rates.json), ten minutes.
token-rates *args:
    python benchmarks/token_rates.py "$@"

# Four sources by tokens over three stages: counts, kills, worlds, broken orders (docs/evidence/mixture.json), five minutes.
mixture *args:
    python benchmarks/mixture.py "$@"

# Planted duplicates, leaks and contradictions in a million rows: found, seconds, memory (docs/evidence/data_survey.json), half an hour.
data-survey *args:
    python benchmarks/data_survey.py "$@"

# Tokens that a plan estimates from raw data against those `prepare` counts (docs/evidence/raw_data.json), ten minutes.
raw-data *args:
    python benchmarks/raw_data.py "$@"

# A small run's whole stay here, part by part, against its plan and its calibrated interval (docs/evidence/whole_stay.json).
whole-stay *args:
    python benchmarks/whole_stay.py "$@"

# What works with every family of models, by tiny ones, and the table Stoker ships (docs/evidence/families.json).
families *args:
    python benchmarks/families.py "$@"

# Settings of every recipe on seven pretended devices, and planted faults (docs/evidence/accelerator.json), half an hour.
accelerator *args:
    python benchmarks/accelerator.py "$@"

# DPO on SmolLM2-135M: a stated preference on held-out pairs, with a control (docs/evidence/preference.json).
preference *args:
    python benchmarks/preference.py "$@"

# From a messy file to a served model by four commands with their defaults; exact match before and after (docs/evidence/first_job.json).
first-job *args:
    python benchmarks/first_job.py "$@"

# Speed of DPO and GRPO against TRL's trainers, >= 20 alternating pairs (docs/evidence/objective_speed.json).
objective-speed *args:
    python benchmarks/objective_speed.py "$@"

# LoRA and QLoRA on SmolLM2-135M, held-out exact match (docs/evidence/smollm2.json).
smollm2 *args:
    python benchmarks/smollm2.py "$@"

# SmolLM2-135M learns to call ten tools; held-out calls through `stoker serve` (docs/evidence/tool_calling.json), an hour.
tool-calling *args:
    python benchmarks/tool_calling.py "$@"

# Tokens/s through `stoker serve` against bare vLLM, alternating pairs (docs/evidence/serving.json).
serving *args:
    python benchmarks/serving.py "$@"

# Planted duplicates and leaks through datatrove, killed at 20 points, on a real Slurm (docs/evidence/pipeline.json), an hour.
pipeline *args:
    python benchmarks/pipeline.py "$@"

# A run cut by a real Slurm's time limits against an uninterrupted one (docs/evidence/slurm.json), about 40 minutes.
slurm *args:
    python benchmarks/slurm.py "$@"

# Readers of a run of a million steps: time and memory of each (docs/evidence/long_run.json), some minutes.
long-run *args:
    python benchmarks/long_run.py "$@"

# Checkpoints loaded by other strategies and counts: every bit, and peak memory (docs/evidence/reshard.json), ten minutes.
reshard *args:
    python benchmarks/reshard.py "$@"

# What ranks copy and how long training waits as they share a checkpoint (docs/evidence/shared_saves.json), two minutes.
shared-saves *args:
    python benchmarks/shared_saves.py "$@"

# Training that streams its set from S3 over a slow line, against a local set; cuts and controls (docs/evidence/streamed.json), half an hour.
streamed *args:
    python benchmarks/streamed.py "$@"

# Two hosts of one run, and failures of either (docs/evidence/hosts.json), about ten minutes.
hosts *args:
    python benchmarks/hosts.py "$@"

# Laptop to training on a fresh box, and data over a slow line against bare rsync (docs/evidence/launch.json).
launch *args:
    python benchmarks/launch.py "$@"

# Kills of every objective, half in reference passes and rollouts (docs/evidence/objective_kills.json): `just objective-kills --n 200`.
objective-kills *args:
    python tests/campaigns/campaign.py objective_kills --report docs/evidence/objective_kills.json "$@"

# One campaign of faults, from a seed (docs/evidence/campaigns/NAME.json): `just campaign c1 --n 1000`.
campaign name *args:
    python tests/campaigns/campaign.py "$@"

# The plan of every recipe on every card as digests: a change of structure must not change one (FILE [EARLIER]).
plan-snapshot *args:
    python benchmarks/plan_snapshot.py "$@"

# Preparing against the bare encoder, peak memory, kills (docs/evidence/preparing.json); downloads its text, some hours with all parts.
preparing *args:
    python benchmarks/preparing.py "$@"

# What ranks cost each other, saves by size, the planner for 8-64 GPUs (docs/evidence/scale.json, docs/concepts/scale.*).
scale *args:
    python benchmarks/scale.py "$@"

# The planner against published measurements: errors, intervals, fits, per group.
planner *args:
    python benchmarks/planner.py "$@"

# The intervals beside a plan's figures and the accuracy page again (docs/concepts/planner-accuracy.*), some minutes.
planner-report:
    python benchmarks/planner.py --intervals --report

# Pictures of the screen for README and site, from what the commands print (docs/assets).
pictures:
    python tools/pictures.py

# The documentation site.
docs:
    mkdocs build --quiet --strict

# The planner as a page without a server, into site/calculator (after `docs`, which empties site); needs npm and node.
calculator *args:
    python tools/calculator.py "$@"
