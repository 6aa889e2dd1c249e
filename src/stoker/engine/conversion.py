"""How the tensors of a model's files become its parameters, and back: by transformers' own rules, one group at a time.

Some files hold one tensor per expert where the model has one per layer, or other names; `from_pretrained` converts
them. A group is what is converted at once: most are one tensor, an MoE layer's experts are two.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

Tensors = dict[str, torch.Tensor]


@dataclass
class Group:
    """Tensors of the files that become parameters together."""

    first: str
    """The first of the parameters, by which transformers names the group."""
    converter: Any = None
    """None where the tensor is the parameter, under the same or another name."""
    stored: dict[str, str] = field(default_factory=dict)
    """Names in the files, each with the converter's pattern it belongs to."""
    parameters: tuple[str, ...] = ()


class Conversion:
    """The groups of a model's files.

    Args:
        shapes: Shapes of the stored tensors, by name.
        plain: The model, on any device, without an adapter; of its parameters only names and shapes count.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], plain: Any) -> None:
        self._plain = plain
        rules = get_model_conversion_mapping(plain)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        known = plain.state_dict()
        groups: dict[str, Group] = {}
        for name in sorted(shapes, key=dot_natural_key):
            first, pattern = self._renamed(name, renamings, converters, known)
            if first in known:
                group = groups.setdefault(first, Group(first, by_pattern.get(pattern)))
                group.stored[name] = pattern or name
        # What transformers would note when loading these files, to save in the same layout.
        plain._weight_conversions = [rule for rule in rules if rule.was_used()]
        self.of_stored: dict[str, Group] = {}
        """Groups by the name of a tensor in the files; those that the model does not use are in none."""
        self.of_parameter: dict[str, Group] = {}
        for group in groups.values():
            meta = self.to_parameters(group, lambda name: torch.empty(shapes[name], device="meta"))
            group.parameters = tuple(meta)
            self.of_stored |= dict.fromkeys(group.stored, group)
            self.of_parameter |= dict.fromkeys(group.parameters, group)

    def to_parameters(self, group: Group, read: Callable[[str], torch.Tensor]) -> Tensors:
        """A group's parameters; `read` returns a stored tensor by name."""
        if group.converter is None:
            return {group.first: read(next(iter(group.stored)))}
        converter = deepcopy(group.converter)
        for name, pattern in group.stored.items():
            converter.add_tensor(group.first, name, pattern, lambda name=name: read(name))
        made = converter.convert(group.first, model=self._plain, config=self._plain.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def to_stored(self, group: Group, parameters: Tensors) -> Tensors:
        """The reverse of `to_parameters`; the names are the files' own if transformers can write this layout."""
        if group.converter is None:
            return {next(iter(group.stored)): parameters[group.first]}
        made = revert_weight_conversion(self._plain, dict(parameters))
        return {self._stored_name(group, name): value for name, value in made.items()}

    def is_reversible(self, group: Group, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether a group can be written back as it is stored: by names and shapes."""
        meta = self.to_parameters(group, lambda name: torch.empty(shapes[name], device="meta"))
        back = self.to_stored(group, meta)
        return {name: tuple(value.shape) for name, value in back.items()} == {n: shapes[n] for n in group.stored}

    def _renamed(
        self, name: str, renamings: list[Any], converters: list[Any], known: Tensors
    ) -> tuple[str, str | None]:
        """A parameter's name by a stored one, and the pattern of its converter; as in `from_pretrained`."""
        prefix = self._plain.base_model_prefix
        first, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if first not in known and name in known:
            return rename_source_key(name, [], [], prefix, known)
        return first, pattern

    def _stored_name(self, group: Group, name: str) -> str:
        """Files of a model without its head lack its prefix."""
        prefix = f"{self._plain.base_model_prefix}."
        return next((one for one in _variants(name, prefix) if one in group.stored), name)


def _variants(name: str, prefix: str) -> Iterable[str]:
    return name, prefix + name, name.removeprefix(prefix)
