"""Reads a configuration file into flat keys, each with the place where it was written. Imports YAML: only when there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from cluster.errors import ConfigError

#: No setting needs more; a file that is far larger is another file.
MAX_BYTES = 1024 * 1024


def read(path: Path) -> dict[str, tuple[object, str]]:
    """key -> (value, "<path>:<line>"), sections joined with ".". A key that stands twice is an error, as in no YAML library.

    Raises ConfigError when the file is missing, is no YAML, or is no mapping of sections.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError(f"configuration file {path} is larger than {MAX_BYTES} bytes")
        loader = yaml.SafeLoader(raw.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"configuration file {path} is no UTF-8 text") from error
    try:
        root = loader.get_single_node()
        return {} if root is None else _flat(loader, root, path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"configuration file {path} is no valid YAML: {_words(error)}") from error
    finally:
        loader.dispose()


def _flat(loader: yaml.SafeLoader, root: yaml.Node, path: Path) -> dict[str, tuple[object, str]]:
    if isinstance(root, yaml.ScalarNode) and loader.construct_object(root) is None:
        return {}
    found: dict[str, tuple[object, str]] = {}
    for key, value, place in _entries(loader, root, path):
        if isinstance(value, yaml.MappingNode):
            pairs = [(f"{key}.{name}", inner, where) for name, inner, where in _entries(loader, value, path)]
        elif isinstance(value, yaml.ScalarNode) and loader.construct_object(value) is None and value.value == "":
            # A section whose every key is commented out.
            pairs = []
        else:
            pairs = [(key, value, place)]
        for name, inner, where in pairs:
            if name in found:
                raise ConfigError(f"{name} stands twice, in {found[name][1]} and {where}", field=name)
            found[name] = (loader.construct_object(inner, deep=True), where)
    return found


def _entries(loader: yaml.SafeLoader, node: yaml.Node, path: Path) -> Iterator[tuple[str, yaml.Node, str]]:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"configuration file {path} must hold sections and keys, as configs/local.yaml does")
    loader.flatten_mapping(node)
    for key, value in node.value:
        yield str(loader.construct_object(key, deep=True)), value, f"{path}:{key.start_mark.line + 1}"


def _words(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f" at line {mark.line + 1}" if mark is not None else ""
    return " ".join(str(getattr(error, "problem", None) or error).split()) + line
