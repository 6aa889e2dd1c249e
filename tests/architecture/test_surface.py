"""The public surface is frozen: commands, run-file keys, plan keys, error codes, exit codes, variables, Python API.

A change here is a change for users. Make it deliberately:
    python tests/architecture/test_surface.py --write
then look at the diff of surface.json and write a line in CHANGELOG.md.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import pytest
import reference

import stoker
from stoker import env, errors
from stoker.api.comparison import Comparison
from stoker.api.handle import RunHandle
from stoker.config.run import Run
from stoker.plan.plan import Plan

FROZEN = Path(__file__).with_name("surface.json")


def keys(schema: dict[str, Any]) -> list[str]:
    """Every key of a model as a dotted path; a union's member is named by its tag."""
    found = []

    def walk(prefix: str, model: dict[str, Any]) -> None:
        for name, entry in model["properties"].items():
            found.append(f"{prefix}{name}")
            inner = list(dict.fromkeys(reference.references(entry)))
            for model_name in inner:
                tag = "" if len(inner) == 1 else f"({model_name.lower()})"
                walk(f"{prefix}{name}{tag}.", schema["$defs"][model_name])

    walk("", schema)
    return found


def commands() -> dict[str, list[str]]:
    return {
        name: [reference.spelling(parameter) for parameter in command.params]
        for name, command in reference.commands().items()
    }


def python_api() -> dict[str, Any]:
    """Signatures of the functions, and members of the classes they return or raise."""
    offered = {name: getattr(stoker, name) for name in stoker.__all__ if name != "__version__"}
    return {name: members(one) if inspect.isclass(one) else parameters(one) for name, one in offered.items()} | {
        one.__name__: members(one) for one in (RunHandle, Comparison)
    }


def parameters(function: Any) -> str:
    """Without types: how Python prints those differs from version to version."""
    signature = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def members(one: type) -> list[str]:
    ours = [base for base in one.__mro__ if base.__module__.startswith("stoker")]
    names = {name for base in ours for name in (*vars(base), *inspect.get_annotations(base))}
    return sorted(name for name in names if not name.startswith("_"))


def surface() -> dict[str, Any]:
    return {
        "commands": commands(),
        "run_file": keys(Run.model_json_schema()),
        "plan": keys(Plan.model_json_schema()),
        "errors": reference.error_codes(),
        "exit_codes": sorted(value for name, value in vars(errors).items() if name.startswith("EXIT_")),
        "environment": [variable.name for variable in env.VARIABLES],
        "python": python_api(),
    }


@pytest.mark.parametrize("part", sorted(surface()))
def test_the_surface_is_as_frozen(part: str) -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert surface()[part] == frozen[part], (
        "the public surface changed; if that is meant, run `python tests/architecture/test_surface.py --write` "
        "and tell users in CHANGELOG.md"
    )


def test_a_plan_has_the_keys_that_were_promised() -> None:
    promised = {
        "batch.effective",
        "batch.micro",
        "batch.accumulation",
        "batch.devices",
        "precision",
        "strategy",
        "gradient_checkpointing",
        "attention",
        "memory.peak_allocated_bytes",
        "memory.peak_reserved_bytes",
        "memory.parts",
        "speed.tokens_per_second",
        "speed.step_seconds",
        "time_seconds",
        "cost.amount",
        "cost.currency",
        "disk_bytes",
        "fits",
        "estimated",
        "reasons",
        "native",
    }
    assert promised - set(keys(Plan.model_json_schema())) == set()


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    FROZEN.write_text(json.dumps(surface(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
