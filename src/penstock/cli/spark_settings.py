"""[spark] and `--conf`: what the user tells Spark, by the names that it has there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from penstock.errors import ConfigError


def spark_settings(written: Mapping[str, object], *, where: str) -> dict[str, str]:
    """`[spark]` as Spark reads it: `executor.memory = "4g"`, `spark.executor.memory = "4g"` and
    `"spark.executor.memory" = "4g"` say the same. Raises ConfigError for what is no value."""
    found: dict[str, str] = {}
    for name, value in _flat(written, where):
        full = name if name.startswith("spark.") else f"spark.{name}"
        if full in found:
            raise ConfigError(f"{where} says {full} twice. Nothing was started.")
        found[full] = value
    return found


def with_conf(settings: Mapping[str, str], conf: Sequence[str]) -> dict[str, str]:
    """`settings`, and what `--conf NAME=VALUE` says, which wins. Raises ConfigError."""
    chosen = dict(settings)
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(
                f"--conf {one!r} is not spark.NAME=VALUE, as spark.executor.memory=4g. "
                f"Nothing was started."
            )
        chosen[name] = value
    return chosen


def _flat(written: Mapping[str, object], where: str) -> Iterator[tuple[str, str]]:
    for name, value in written.items():
        if isinstance(value, dict):
            for rest, inner in _flat(cast("dict[str, object]", value), f"{where}.{name}"):
                yield f"{name}.{rest}", inner
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise ConfigError(
                f"{where}.{name} must be text, a number, true or false. Nothing was started."
            )
