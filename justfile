# One command = CI: `just check`. Everything else is longer, or makes something.
set positional-arguments
export OMP_NUM_THREADS := "1"
export HF_HUB_OFFLINE := "1"

# What CI runs before the engine tests: format, lint, types, rooms, light tests.
check:
    ruff format --check .
    ruff check .
    mypy
    lint-imports
    python tools/known_options.py --check
    python tools/reference.py --check
    pytest -q tests/unit tests/cli tests/architecture

# Torch on CPU: prepare, train, resume, the README's tour.
engine:
    pytest -q tests/engine

# Equivalence classes of runs must give one loss trajectory.
invariant:
    pytest -q tests/invariant

# All tests, as CI runs them.
test:
    pytest -q

# Format and mend what can be mended.
fmt:
    ruff format .
    ruff check --fix .

# Install the tested combination into this environment.
setup:
    bash tools/setup.sh

# Generated files: reference pages, known options, frozen surface.
generate:
    python tools/known_options.py
    python tools/reference.py

# Speed against the bare Trainer, >= 20 alternating pairs (docs/evidence/overhead.json).
overhead *args:
    python benchmarks/overhead.py "$@"

# LoRA and QLoRA on SmolLM2-135M, held-out exact match (docs/evidence/smollm2.md).
smollm2 *args:
    python benchmarks/smollm2.py "$@"

# The documentation site.
docs:
    mkdocs build --strict
