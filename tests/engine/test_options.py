"""The generated list of the engines' option names is true to the live classes."""

import dataclasses
import importlib.metadata
import inspect
from typing import Any

import peft
import pytest
import transformers

from stoker.rundir import files

pytestmark = pytest.mark.filterwarnings("default")


def test_the_list_equals_the_live_classes(pytestconfig: pytest.Config) -> None:
    content = files.read_json(pytestconfig.rootpath / "src/stoker/config/known_options.json")
    for name, version in content["versions"].items():
        if importlib.metadata.version(name) != version:
            pytest.skip(f"the list is of {name} {version}, which is not installed here")

    def fields(cls: Any) -> list[str]:
        return sorted(field.name for field in dataclasses.fields(cls) if field.init)

    assert content["options"]["trainer"] == fields(transformers.TrainingArguments)
    assert content["options"]["lora"] == fields(peft.LoraConfig)
    signature = set(inspect.signature(transformers.BitsAndBytesConfig.__init__).parameters) - {"self", "kwargs"}
    assert content["options"]["quantization"] == sorted(signature)
    for schedule, names in content["schedules"].items():
        function = transformers.optimization.TYPE_TO_SCHEDULER_FUNCTION[transformers.SchedulerType(schedule)]
        ours = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
        assert names == sorted(set(inspect.signature(function).parameters) - ours), schedule
    for family, names in content["shapes"].items():
        assert names == fields(type(transformers.AutoConfig.for_model(family))), family
