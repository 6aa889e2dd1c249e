"""The sides that `gpu.py` compares Stoker with, each in a process of its own: python gpu_sides.py SIDE FOLDER.

Without a line of Stoker, so that the Python of another tool can run it. FOLDER/given.json says what to train; what was
measured is left beside it, as `overhead.note` writes it. Unsloth and LLaMA-Factory have not been run here: the calls
follow their documentation as it was, and may need a look.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))

import overhead

MODULES = {"bare": "transformers", "unsloth": "unsloth", "llama_factory": "llamafactory"}
"""What a side needs."""

Given = dict[str, Any]
"""See `gpu.told`. A row is one document; a token that is not trained is stored as ~id."""


def bare(given: Given, marks: overhead.Marks) -> list[float]:
    """A plain `Trainer`."""
    import bare as yardstick
    import torch

    options = {**given["load"], "dtype": getattr(torch, given["load"]["dtype"])}
    model = yardstick.build_model(given["model"], given["method"], given["lora"], given["seed"], **options)
    return _by_trainer(model, given, marks)


def unsloth(given: Given, marks: overhead.Marks) -> list[float]:
    """The same `Trainer` around a model that Unsloth has patched."""
    import torch
    import unsloth as theirs  # before transformers, which it patches

    model, _ = theirs.FastLanguageModel.from_pretrained(
        model_name=given["model"],
        max_seq_length=given["length"],
        dtype=getattr(torch, given["load"]["dtype"]),
        load_in_4bit=given["method"] == "qlora",
        full_finetuning=given["method"] == "full",
    )
    if given["method"] != "full":
        linear = {name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)}
        model = theirs.FastLanguageModel.get_peft_model(
            model,
            r=given["lora"]["r"],
            lora_alpha=given["lora"]["lora_alpha"],
            lora_dropout=given["lora"]["lora_dropout"],
            target_modules=sorted(linear - {"lm_head"}),
            use_gradient_checkpointing="unsloth" if given["trainer"]["gradient_checkpointing"] else False,
            random_state=given["seed"],
        )
    return _by_trainer(model, given, marks)


def llama_factory(given: Given, marks: overhead.Marks) -> list[float]:
    """Its own loop over the same tokens, which it takes as its own cache of a tokenised set."""
    import datasets
    from llamafactory.train import tuner

    folder = Path(given["folder"]) / "llama_factory"
    rows = [{"input_ids": _ids(row), "attention_mask": [1] * len(row), "labels": _labels(row)} for row in given["rows"]]
    tokenized = folder / "tokenized"
    if not tokenized.exists():
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(tokenized)
    trainer = {name: value for name, value in given["trainer"].items() if not name.startswith("gradient_checkpointing")}
    adapter = {"finetuning_type": "full"}
    if given["method"] != "full":
        lora = given["lora"]
        adapter = {"finetuning_type": "lora", "lora_target": "all", "lora_rank": lora["r"]}
        adapter |= {"lora_alpha": lora["lora_alpha"], "lora_dropout": lora["lora_dropout"]}
    if given["method"] == "qlora":
        adapter |= {"quantization_bit": 4, "quantization_method": "bnb"}
    tuner.run_exp(
        {
            **trainer,
            **adapter,
            "stage": "sft",
            "do_train": True,
            "model_name_or_path": given["model"],
            "template": "default",
            "tokenized_path": str(tokenized),
            "cutoff_len": given["length"],
            "disable_shuffling": True,
            "disable_gradient_checkpointing": not given["trainer"]["gradient_checkpointing"],
            "per_device_train_batch_size": given["micro"],
            "gradient_accumulation_steps": given["accumulation"],
            "num_train_epochs": 1.0,
            "seed": given["seed"],
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "output_dir": str(folder / "out"),
        },
        callbacks=[overhead.clock(marks)],
    )
    history = json.loads((folder / "out" / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def _by_trainer(model: Any, given: Given, marks: overhead.Marks) -> list[float]:
    """The losses of a plain `Trainer` over the rows in their order."""
    import bare as yardstick
    import numpy as np

    rows = [[np.array(row, dtype=np.int32)] for row in given["rows"]]
    split = given["micro"], given["accumulation"], given["seed"]
    options = {"extra": [overhead.clock(marks)], **given["trainer"]}
    return yardstick.losses(model, rows, Path(given["folder"]) / "out", *split, **options)


def _ids(row: list[int]) -> list[int]:
    return [~token if token < 0 else token for token in row]


def _labels(row: list[int]) -> list[int]:
    return [-100 if token < 0 else token for token in row]


def main(side: str, folder: Path) -> int:
    marks: overhead.Marks = []
    losses = {"bare": bare, "unsloth": unsloth, "llama_factory": llama_factory}[side](
        json.loads((folder / "given.json").read_text()), marks
    )
    overhead.note(folder, marks, losses=losses)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
