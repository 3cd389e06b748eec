"""YAML in and out. Of YAML it takes mappings, lists and plain values: no anchors, tags or duplicates.

Nodes are read before YAML gives them types, since each key's own type decides that (``values``),
and since nodes know their line.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from jaxpipe.config.assignments import Assignment, Entries, Fault, Items, Source, Text, Value, check_path
from jaxpipe.config.keys import sections
from jaxpipe.config.sections import Config

_DEEPEST = 20


def read_yaml_file(path: str) -> Source:
    """The assignments of a file, or the fault that it cannot be read."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return _broken(
            f"there is no file {path}; give the path of a YAML file, such as configs/tiny.yaml", ""
        )
    except OSError as error:
        return _broken(f"{path} cannot be read: {error.strerror}", "")
    return read_yaml(content, name=path)


def read_yaml(content: bytes | str, *, name: str) -> Source:
    """The assignments of a YAML text; ``name`` is what messages call it."""
    depth = 0
    try:
        for event in yaml.parse(content, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            refusal = _refusal(event, depth)
            if refusal:
                return _broken(refusal, name + _position(event.start_mark))
        tree = yaml.compose(content, yaml.SafeLoader)
    except yaml.YAMLError as error:
        where = name + _position(getattr(error, "problem_mark", None))
        return _broken(f"malformed YAML: {_problem(error)}", where)
    if tree is None:
        return Source()
    if not isinstance(tree, yaml.MappingNode):
        return _broken("a configuration is a mapping of sections, such as 'train:'", f"{name}:1")
    found = list(_read_mapping(tree, "", name))
    return Source(
        tuple(item for item in found if isinstance(item, Assignment)),
        tuple(item for item in found if isinstance(item, Fault)),
    )


def to_yaml(config: Config) -> str:
    """The whole configuration as YAML; reading it back gives an equal one."""
    return yaml.safe_dump(_plain(config), sort_keys=False)


def _read_mapping(mapping: yaml.MappingNode, prefix: str, name: str) -> Iterator[Assignment | Fault]:
    seen: dict[str, int] = {}
    for key_node, value_node in mapping.value:
        line = key_node.start_mark.line + 1
        where = f"{name}:{line}"
        if not isinstance(key_node, yaml.ScalarNode):
            yield Fault("a key must be a name, found a list or mapping", where)
            continue
        path = prefix + key_node.value
        if path in seen:
            yield Fault(f"{path} is given twice, first on line {seen[path]}; keep one", where)
        seen.setdefault(path, line)
        if path in sections() and isinstance(value_node, yaml.MappingNode):
            yield from _read_mapping(value_node, path + ".", name)
            continue
        assignment = Assignment(path, _value(value_node), where)
        yield check_path(assignment) or assignment


def _value(node: yaml.Node) -> Value:
    if isinstance(node, yaml.SequenceNode):
        return Items(tuple(_value(item) for item in node.value))
    if isinstance(node, yaml.ScalarNode):
        quoted = node.style is not None
        return None if node.tag.endswith(":null") and not quoted else Text(node.value, quoted)
    return Entries()


def _refusal(event: yaml.Event, depth: int) -> str:
    if depth > _DEEPEST:
        return f"nested more than {_DEEPEST} deep; no key of the configuration needs that"
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        return "anchors and aliases are not read; write the value out"
    if getattr(event, "tag", None):
        return "tags are not read; leave it out"
    return ""


def _problem(error: yaml.YAMLError) -> str:
    words = [
        getattr(error, "context", None),
        getattr(error, "problem", None) or getattr(error, "reason", None),
    ]
    return ", ".join(word for word in words if word)


def _position(mark: Any) -> str:
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _broken(message: str, where: str) -> Source:
    return Source(faults=(Fault(message, where),), complete=False)
