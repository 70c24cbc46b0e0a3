# SPDX-License-Identifier: Apache-2.0
"""A YAML loader that refuses a key that stands twice: the usual one takes the last and forgets the others."""

from collections.abc import Hashable

import yaml


class _StrictLoader(yaml.SafeLoader):
    """A loader that refuses a mapping that has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: dict[object, yaml.Mark] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<` may come twice, and what it brings may be overridden
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                first, again = seen[key].line + 1, key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key!r} of line {first} stands again in line {again}; keep one"
                )
            if isinstance(key, Hashable):
                seen[key] = key_node.start_mark
        return super().construct_mapping(node, deep=deep)


def load_yaml(text: str) -> object:
    """Read a YAML text as plain data.

    Raises:
        yaml.YAMLError: the text is not YAML, or a key stands twice in one mapping.
    """
    return yaml.load(text, _StrictLoader)
