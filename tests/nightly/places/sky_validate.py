"""Run by the Python of SkyPilot's own environment: what SkyPilot makes of task files and command lines.

Reads and prints JSON. SkyPilot downloads its list of accelerators; the names it needs are written where it would be.
"""

import json
import os
import pathlib
import sys

HOME = pathlib.Path(os.environ["HOME"])
NAMES = json.loads(os.environ["SKY_NAMES"])


def catalogue() -> None:
    """`common/accelerators.csv` and `metadata.csv` in SkyPilot's own form."""
    from sky.skylet import constants

    folder = HOME / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION / "common"
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{name},\"['AWS']\"\n" for name in NAMES)
    (folder / "accelerators.csv").write_text(f"AcceleratorName,Clouds\n{rows}", encoding="utf-8")
    (folder / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\n", encoding="utf-8")


def told(path: str) -> dict[str, object]:
    """What SkyPilot reads in a file, or its complaint."""
    import sky
    import yaml
    from sky.utils import common_utils, schemas

    try:
        task = sky.Task.from_yaml(path)
        with pathlib.Path(path).open(encoding="utf-8") as file:
            config = yaml.safe_load(file)
        common_utils.validate_schema(config["resources"], schemas.get_resources_schema(), "resources: ")
        given = [(name, "given") for name in config.get("secrets", {})]
        with_secrets = sky.Task.from_yaml_config(config, secrets_overrides=given)
    except Exception as error:  # noqa: BLE001  # whatever SkyPilot raises is its answer
        return {"refused": f"{type(error).__name__}: {error}"}
    return {
        "name": task.name,
        "workdir": task.workdir,
        "setup": task.setup,
        "run": task.run,
        "secrets": sorted(with_secrets.secrets),
        "resources": [
            {
                "accelerators": one.accelerators,
                "use_spot": one.use_spot,
                "disk_size": one.disk_size,
                "job_recovery": one.job_recovery,
                "autostop": one.autostop_config and one.autostop_config.to_yaml_config(),
            }
            for one in task.resources
        ],
    }


def parsed(words: list[str]) -> dict[str, object]:
    """What SkyPilot's command line makes of `sky WORDS`; nothing is run."""
    import click
    from sky.client.cli import command

    group, rest = command.cli, words[1:]
    while isinstance(group, click.Group):
        group, rest = group.commands[rest[0]], rest[1:]
    context = group.make_context(group.name, rest)
    kept = ("cluster", "name", "entrypoint", "secret")
    return {key: value for key, value in context.params.items() if key in kept and value}


catalogue()
asked = json.loads(sys.stdin.read())
print(
    json.dumps(
        {"tasks": [told(path) for path in asked["files"]], "commands": [parsed(one) for one in asked["commands"]]}
    )
)
