"""Prepares a finished model that was not exported for serving: `python -m stoker.engine.serving RUN_DIR`.

Writes `artifacts/.serving.tmp/`: the verified base's folder, and generation settings with every stop token, so that the
served model stops where `stoker chat` does.
"""

import sys
from pathlib import Path

from transformers import AutoConfig, GenerationConfig

from stoker.engine import generate, merge, models, program, trained_on
from stoker.errors import EXIT_DONE
from stoker.rundir import artifacts, files
from stoker.rundir.layout import RunDir

NAME = "serving"


def main(path: Path) -> int:
    """Write the server's settings."""
    run_dir = RunDir(path)
    adapter = (run_dir.final / merge.ADAPTER_CONFIG).is_file()
    base = trained_on.folder(run_dir, run_dir.run()) if adapter else run_dir.final
    folder = artifacts.begin(run_dir, NAME)
    tokenizer = models.load_tokenizer(run_dir.final)
    settings = _settings(base)
    settings.eos_token_id = generate.end_ids(settings, tokenizer)
    settings.save_pretrained(folder)
    files.write_json(folder / "base.json", {"folder": str(base.resolve())})
    return EXIT_DONE


def _settings(folder: Path) -> GenerationConfig:
    """The model's own, else those of its configuration."""
    if (folder / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(folder)
    return GenerationConfig.from_model_config(AutoConfig.from_pretrained(folder))


if __name__ == "__main__":
    sys.exit(program.run(main))
