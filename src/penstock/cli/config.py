"""The whole of penstock.toml, read and checked before anything starts.

Each section is the configuration of its adapter; this module only knows which section belongs to
whom. `${NAME}` in a text is replaced from the environment, so that the file holds no secret, and
no error here shows what stood in its place.
"""

import difflib
import errno
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    runtime_checkable,
)

from msgspec import Struct
from pydantic import BaseModel, ValidationError

from penstock import doors
from penstock.archive.config import ArchiveConfig
from penstock.capture.config import CaptureConfig
from penstock.checkpoints import CheckpointConfig
from penstock.cli.alerts import AlertsConfig
from penstock.cli.logs import LoggingConfig
from penstock.cli.places import beside, clash, secret_in
from penstock.cli.processes_config import ProcessesConfig
from penstock.cli.spark_settings import spark_settings
from penstock.config import Config
from penstock.errors import ConfigError
from penstock.log.config import LogConfig
from penstock.ports import ChangeSource
from penstock.serve.access.config import AccessConfig
from penstock.serve.addresses import refuse_open
from penstock.serve.config import ServeConfig
from penstock.state.config import StateConfig

if TYPE_CHECKING:
    from penstock.spark.config import (
        AuditPipelineConfig,
        PipelineConfig,
        TablePipelineConfig,
    )

Checked = TypeVar("Checked", bound=BaseModel)
Made = TypeVar("Made")

_SECTIONS = (
    "log",
    "archive",
    "capture",
    "alerts",
    "logging",
    "checkpoint",
    "sources",
    "state",
    "serve",
    "access",
    "pipelines",
    "processes",
    "spark",
)
_KNOWN_BY_ITSELF: Final[Mapping[str | int, str]] = {
    "keys": "the key is the source's own. Leave it out",
    "sequence_by": "the order is the log's. Leave it out",
    "apply_as_deletes": "a pipeline to 'audit' keeps every change as it was captured. Leave it out",
    "apply_as_truncates": "where the source says that all rows are gone, they go. Leave it out",
    "column_list": "a step keeps fields. Write transform = [{ select = ['NAME'] }]",
    "except_column_list": "a step leaves fields out. Write transform = [{ drop = ['NAME'] }]",
    "ignore_null_updates": "a null that the source wrote is written, and what an update does not "
    "say stays as it was. Leave it out",
    "stored_as_scd_type": "type 1 is to = 'table', type 2 to = 'history'",
    "track_history_column_list": "versions of rows are kept with to = 'history'",
    "track_history_except_column_list": "versions of rows are kept with to = 'history'",
    "name": "its name is NAME of [pipelines.NAME]. Leave it out",
    "target": "where it goes is said by path, catalog or uri, and what is made there by to",
    "once": "write trigger = 'availableNow', or run it with --once",
    "spark_conf": "settings of Spark are under [spark]",
}
"""What Spark's AUTO CDC asks of a pipeline, and how ours has it."""
_OTHER_NAMES: Final = {
    "mariadb": " (MariaDB is captured with type = 'mysql')",
    **dict.fromkeys(
        ("postgres", "postgresql"),
        " (PostgreSQL is not captured; it can be the destination of a pipeline to = 'replicate')",
    ),
    "dynamodb": " (a store with DynamoDB's protocol is captured with type = 'store')",
}
"""What other names of databases mean as the type of a source."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@runtime_checkable
class HasPlace(Protocol):
    """The configuration of a source that lies in a folder."""

    def beside(self, folder: Path) -> Config:
        """With its path made relative to `folder`, unless it is absolute."""
        ...


class SourceSettings(Struct, frozen=True, kw_only=True):
    """A source as configured, and the class that captures it."""

    name: str
    kind: str
    adapter: type[Any]
    config: Config

    def open(self) -> ChangeSource:
        """The source; it connects only when it is asked for changes."""
        source: ChangeSource = self.adapter(self.name, self.config)
        return source

    def opening(self) -> Callable[[], Any]:
        """What makes the source, in any process that has Penstock."""
        adapter: Callable[..., Any] = self.adapter
        return partial(adapter, self.name, self.config)

    @property
    def silence_seconds_max(self) -> float:
        """Two heartbeats of silence, and never so little that a busy machine is called silent."""
        return max(30.0, 2.0 * float(getattr(self.config, "heartbeat_seconds", 15.0)))


class Settings(Struct, frozen=True, kw_only=True):
    """penstock.toml, checked."""

    path: Path
    log: LogConfig
    archive: ArchiveConfig
    capture: CaptureConfig
    alerts: AlertsConfig
    logging: LoggingConfig
    processes: ProcessesConfig
    checkpoint: CheckpointConfig
    sources: dict[str, SourceSettings]
    state: StateConfig
    serve: ServeConfig
    access: AccessConfig
    pipelines: "dict[str, PipelineConfig]"
    spark: dict[str, str]
    """Settings of Spark by their own names, for the sessions of pipelines."""

    @property
    def table_pipelines(self) -> "dict[str, TablePipelineConfig]":
        """Those that keep tables."""
        return {name: one for name, one in self.pipelines.items() if one.to == "table"}

    @property
    def audit_pipelines(self) -> "dict[str, AuditPipelineConfig]":
        """Those that keep an audit trail."""
        return {name: one for name, one in self.pipelines.items() if one.to == "audit"}


def load(
    path: Path,
    *,
    environment: Mapping[str, str] | None = None,
    listen: Mapping[str, str | None] | None = None,
    running: bool = False,
) -> Settings:
    """Read and check a file; relative paths inside it are relative to its folder.

    `listen` replaces settings of [serve], where it has a value. `running` says that this process is
    the service, whose environment no shell changes.

    Raises ConfigError that names the file and every key that is wrong, and near matches of a name
    it does not know. Secrets are never part of the message.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration at {path}. Nothing was started. Write one, or name another "
            f"with --config; `penstock quickstart` shows a small one at work."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no text in UTF-8: byte {error.start} is of none. Nothing was started."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}. Nothing was started."
        ) from error
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}. Nothing was started.") from error
    if not written:
        raise ConfigError(
            f"{path} is empty, and so no configuration. Nothing was started. Write a "
            f"[sources.NAME] with a type; `penstock quickstart` shows a small one at work."
        )
    known = os.environ if environment is None else environment
    variables = _Variables(path, known, running=running)
    written = variables.table(written, "")
    replaced: dict[str, Any] = {
        name: address for name, address in (listen or {}).items() if address is not None
    }
    serve = written.get("serve", {})
    if replaced and isinstance(serve, dict):
        table = cast("dict[str, Any]", serve).get("dynamodb")
        if "dynamodb" in replaced and isinstance(table, dict) and replaced["dynamodb"] != "off":
            replaced = {**replaced, "dynamodb": {**table, "address": replaced["dynamodb"]}}
        written["serve"] = {**serve, **replaced}
    try:
        return _settings(path, written, variables)
    except ConfigError as error:
        raise ConfigError(variables.redact(str(error))) from None


def missing_extra(what: str, extra: str, error: ImportError) -> ConfigError:
    """The error for a package that is not installed."""
    return ConfigError(
        f"{what} needs a package that is not installed ({error.name}). Nothing was started. "
        f"Install it: pip install 'penstock[{extra}]'"
    )


def config_class(adapter: type[Any]) -> type[Config]:
    """What configures a source class: the annotation of the `config` of its constructor."""
    found = get_type_hints(adapter.__init__).get("config")
    if not (inspect.isclass(found) and issubclass(found, Config)):
        raise TypeError(f"{adapter.__name__}(name, config) must annotate config with its Config")
    return found


class _Faults:
    """What is wrong with a file, all of it."""

    def __init__(self, path: Path, variables: "_Variables") -> None:
        self._path = path
        self._variables = variables
        self.messages = [message for _, message in variables.missing]

    def tried(self, where: str, make: Callable[[], Made], otherwise: Made) -> Made:
        """What `make` returns; `otherwise` where it raises ConfigError, which is kept, or where
        the part `where` of the file lacks a variable, which is known already."""
        prefix = f"{where}."
        if any(f"{key}.".startswith(prefix) for key, _ in self._variables.missing):
            return otherwise
        try:
            return make()
        except ConfigError as error:
            self.messages.append(str(error))
            return otherwise

    def told(self) -> None:
        """Raise ConfigError with everything that was wrong, if anything was."""
        if len(self.messages) == 1:
            raise ConfigError(self.messages[0])
        if self.messages:
            each = [
                "\n- " + one.removeprefix(f"{self._path}: ").replace("Nothing was started. ", "")
                for one in self.messages
            ]
            told = "".join(one.removesuffix(" Nothing was started.") for one in each)
            raise ConfigError(f"{self._path} has {len(each)} errors. Nothing was started.{told}")


def _settings(path: Path, written: dict[str, Any], variables: "_Variables") -> Settings:
    faults = _Faults(path, variables)
    for section in written:
        if section not in _SECTIONS:
            faults.messages.append(
                f"{path}: there is no section [{section}]{near(section, _SECTIONS)}. "
                f"Nothing was started."
            )
    for section in _SECTIONS:
        if not isinstance(written.get(section, {}), dict):
            faults.messages.append(f"{path}: {section} must be a table. Nothing was started.")
            written = {**written, section: {}}

    def section_of(kind: type[Checked], name: str) -> Checked:
        table = written.get(name, {})
        return faults.tried(name, lambda: _checked(kind, table, path, name), kind())

    folder = path.resolve().parent
    log = section_of(LogConfig, "log")
    checkpoint = section_of(CheckpointConfig, "checkpoint")
    capture = section_of(CaptureConfig, "capture")
    serve = section_of(ServeConfig, "serve")
    access = section_of(AccessConfig, "access")
    state = section_of(StateConfig, "state")
    alerts = section_of(AlertsConfig, "alerts")
    logging = section_of(LoggingConfig, "logging")
    processes = section_of(ProcessesConfig, "processes")
    archive = faults.tried("archive", lambda: _archive(path, written), ArchiveConfig())
    nothing: dict[str, str] = {}
    spark = faults.tried(
        "spark",
        lambda: spark_settings(written.get("spark", {}), where=f"{path}: spark"),
        nothing,
    )
    sources: dict[str, SourceSettings] = {}
    for name, table in _tables(path, written, "sources", faults).items():
        one = faults.tried(f"sources.{name}", partial(_source, path, name, table), None)
        if one is not None:
            sources[name] = one
    pipelines = _pipelines(path, written, sources, faults)
    access = access.beside(folder)
    for setting, place in (
        ("log.path", folder / log.path),
        ("archive.path", None if "://" in (archive.path or "://") else Path(archive.path or "")),
        ("access.log", access.log),
        ("access.tokens", access.tokens),
        ("access.jwks", access.jwks),
    ):
        if place is not None:
            faults.tried(setting, partial(_require_possible, path, setting, place), None)
    if not faults.messages:  # what one part says of another
        faults.tried("capture", lambda: _require_quotas(path, capture, log, sources), None)
        faults.tried("access", lambda: _require_guarded(path, serve, access), None)
        serve = serve.beside(folder)
        faults.tried("serve", lambda: _require_zero(path, serve, state, sources), None)
    faults.told()
    return Settings(
        path=path,
        log=log.model_copy(update={"path": folder / log.path}),
        archive=archive,
        capture=capture,
        alerts=alerts,
        logging=logging,
        processes=processes,
        checkpoint=checkpoint.beside(folder),
        sources=sources,
        state=state,
        serve=serve,
        access=access,
        pipelines=pipelines,
        spark=spark,
    )


def _require_possible(path: Path, setting: str, place: Path) -> None:
    """Raise ConfigError where nothing can ever be at `place`."""
    try:
        place.stat()
    except ValueError:
        why = "no path has a null character"
    except OSError as error:
        if error.errno not in {errno.ENAMETOOLONG, errno.ELOOP}:
            return  # what is not there may be made
        why = os.strerror(error.errno)
    else:
        return
    raise ConfigError(
        f"{path}: {setting} cannot be the name of a file or folder: {why}. Nothing was started."
    )


def _archive(path: Path, written: dict[str, Any]) -> ArchiveConfig:
    """[archive], its folder relative to the file's; a URL stays as it is."""
    archive = _checked(ArchiveConfig, written.get("archive", {}), path, "archive")
    if archive.path is None or "://" in archive.path:
        return archive
    return archive.model_copy(update={"path": str(path.resolve().parent / archive.path)})


def _require_guarded(path: Path, serve: ServeConfig, access: AccessConfig) -> None:
    """Raise ConfigError where others could reach what nobody guards."""
    for setting in ("grpc", "flight", "http"):
        address = getattr(serve, setting)
        if address == "off":
            continue
        try:
            refuse_open(
                setting, address, tls=serve.tls is not None, guarded=not access.admits_strangers
            )
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    if access.keys and (access.tokens is None or serve.dynamodb is None):
        raise ConfigError(
            f"{path}: access.keys gives access keys of [serve.dynamodb] the grants of tokens, and "
            f"there is no {'access.tokens' if access.tokens is None else 'serve.dynamodb'}. "
            f"Nothing was started."
        )


def _require_zero(
    path: Path, serve: ServeConfig, state: StateConfig, sources: Mapping[str, Any]
) -> None:
    """Raise ConfigError for [serve.zero] that nothing could be served of."""
    zero = serve.zero
    if zero is None:
        return
    why = ""
    if serve.http == "off":
        why = "serve.zero is served at serve.http, which is off. Give it an address"
    if not state.enabled:
        why = (
            "serve.zero needs the current rows, for what a zero-cache begins with: set "
            "enabled = true under [state]"
        )
    for name in sorted(zero.source_names - sources.keys()):
        why = f"serve.zero has a table of the source {name!r}, and there is no [sources.{name}]"
        why += near(name, sources)
    try:
        zero.permission_values()
    except ValueError as error:
        why = f"serve.zero.{error}"
    if why:
        raise ConfigError(f"{path}: {why}. Nothing was started.")


def _require_quotas(
    path: Path, capture: CaptureConfig, log: LogConfig, sources: Mapping[str, Any]
) -> None:
    """Raise ConfigError for quotas that cannot keep what they are for."""
    for name in capture.quotas:
        if name not in sources:
            raise ConfigError(
                f"{path}: capture.quotas.{name}: there is no [sources.{name}]"
                f"{near(name, sources)}. Nothing was started."
            )
    if capture.quotas and log.retention is None:
        raise ConfigError(
            f"{path}: capture.quotas are bytes within [log] retention, which is 'none'. Nothing "
            f"was started. Say for how long entries are kept."
        )
    total = sum(capture.quotas.values())
    if log.retention_bytes is not None and total > log.retention_bytes:
        raise ConfigError(
            f"{path}: capture.quotas are {total} bytes together, and log.retention_bytes only "
            f"{log.retention_bytes}: entries would go before they are old. Nothing was started."
        )


def _tables(
    path: Path, written: dict[str, Any], section: str, faults: _Faults
) -> dict[str, dict[str, Any]]:
    tables = dict(written.get(section, {}))
    for name, table in list(tables.items()):
        if not isinstance(table, dict) or not _NAME.fullmatch(name):
            del tables[name]
            faults.messages.append(
                f"{path}: {section}.{name} must be a table whose name is letters, digits, '_', "
                f"'-' and '.', as [{section}.shop]. Nothing was started."
            )
    return tables


def _source(path: Path, name: str, table: dict[str, Any]) -> SourceSettings:
    known = doors.names(doors.SOURCES)
    kind = table.get("type")
    point = doors.find(doors.SOURCES, kind) if isinstance(kind, str) else None
    if point is None:
        hint = _OTHER_NAMES.get(str(kind).lower()) or near(str(kind), known, cutoff=0.7)
        raise ConfigError(
            f"{path}: sources.{name}.type must be one of {', '.join(known)}{hint}. "
            f"Nothing was started."
        )
    try:
        adapter = doors.load(point)
    except ImportError as error:
        raise missing_extra(f"{path}: sources.{name} (type {kind})", str(kind), error) from error
    config = _checked(config_class(adapter), table, path, f"sources.{name}")
    if isinstance(config, HasPlace):
        config = config.beside(path.resolve().parent)
    return SourceSettings(name=name, kind=str(kind), adapter=adapter, config=config)


def _pipelines(
    path: Path, written: dict[str, Any], sources: dict[str, SourceSettings], faults: _Faults
) -> "dict[str, PipelineConfig]":
    """The pipelines, with relative folders made relative to the file's; none in another's way."""
    pipelines: dict[str, PipelineConfig] = {}
    for name, table in _tables(path, written, "pipelines", faults).items():
        one = faults.tried(
            f"pipelines.{name}",
            partial(_pipeline, path, name, table, written.get("sources", {}), sources),
            None,
        )
        if one is not None:
            pipelines[name] = one
    both = clash(pipelines)
    if both is not None:
        one_place, other = both
        faults.messages.append(
            f"{path}: {one_place.setting} and {other.setting} are the same folder, or one lies in "
            f"the other, and each would write over what the other wrote. Nothing was started. Give "
            f"each a folder of its own."
        )
    return pipelines


def _pipeline(
    path: Path,
    name: str,
    table: dict[str, Any],
    written: Mapping[str, object],
    sources: Mapping[str, SourceSettings],
) -> "PipelineConfig":
    """One pipeline. `written` are all sources of the file, `sources` those that are right."""
    # Only its configuration: no Spark is needed to run the service.
    from penstock.spark.config import PipelineConfig
    from penstock.spark.destinations import config_class

    where = f"pipelines.{name}"
    try:
        kind = config_class(table.get("to", "table"))
    except ValueError as error:
        raise ConfigError(f"{path}: {where}.to: {error}. Nothing was started.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {where}.to: {error}") from error
    pipeline: PipelineConfig = _checked(kind, table, path, where)
    if pipeline.source not in written:
        raise ConfigError(
            f"{path}: pipelines.{name}.source is {pipeline.source!r}, but there is no "
            f"[sources.{pipeline.source}]{near(pipeline.source, written)}. "
            f"Nothing was started."
        )
    if pipeline.source in sources:
        _require_key(path, name, pipeline, sources[pipeline.source].kind)
    for key in secret_in(pipeline):
        raise ConfigError(
            f"{path}: pipelines.{name}.{key} is a URL with a password, which errors and "
            f"reports would show. Nothing was started. Write it into "
            f"pipelines.{name}.storage_options."
        )
    return beside(path.resolve().parent, pipeline)


def _require_key(path: Path, name: str, pipeline: "PipelineConfig", kind: str) -> None:
    """Raise ConfigError where a step takes a field of a key that is known beforehand.

    Of other sources it is known with the first row, and the pipeline stops there.
    """
    from penstock.spark.config import SteppedPipelineConfig
    from penstock.spark.transform.keys import first_taken

    if kind != "mongodb" or not isinstance(pipeline, SteppedPipelineConfig):
        return
    said = first_taken(pipeline.transform, ("_id",))
    if said is not None:
        raise ConfigError(
            f"{path}: pipelines.{name}: {said}, which is the key of every collection of "
            f"{pipeline.source}, and the key tells rows apart at every destination. Nothing was "
            f"started. Have the step leave the field as it is."
        )


def _checked(kind: type[Checked], table: dict[str, Any], path: Path, where: str) -> Checked:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        wrong = "; ".join(
            _sentence(kind, detail["type"], detail["loc"], detail["msg"], where)
            for detail in error.errors(include_url=False, include_input=False)
        )
        raise ConfigError(f"{path}: {wrong}. Nothing was started.") from None


def _sentence(
    kind: type[BaseModel], what: str, place: Sequence[str | int], message: str, where: str
) -> str:
    key = ".".join((where, *map(str, place)))
    if what == "extra_forbidden":
        if where.startswith("pipelines.") and place[0] in _KNOWN_BY_ITSELF:
            return f"there is no setting {key}: {_KNOWN_BY_ITSELF[place[0]]}"
        return f"there is no setting {key}{near(str(place[-1]), kind.model_fields)}"
    if what == "missing":
        return f"{key} is missing"
    return f"{key}: {message.removeprefix('Value error, ')}"


def near(name: str, known: Sequence[str] | Mapping[str, Any], *, cutoff: float = 0.5) -> str:
    """ " (did you mean ...?)", or nothing when no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


class _Variables:
    """Replaces ${NAME}, and knows what was put in, so that no message repeats it."""

    def __init__(self, path: Path, environment: Mapping[str, str], *, running: bool) -> None:
        self._path = path
        self._environment = environment
        self._running = running
        self.missing: list[tuple[str, str]] = []
        """Where a variable is named that there is not, and what to say of it."""
        self._used: dict[str, str] = {}

    def table(self, written: Mapping[str, object], key: str) -> dict[str, Any]:
        """`written` with every variable in it replaced; `key` says where it stands."""
        return {
            name: self.substitute(item, f"{key}.{name}" if key else name)
            for name, item in written.items()
        }

    def substitute(self, value: object, key: str) -> Any:
        if isinstance(value, str):
            return _VARIABLE.sub(lambda found: self._value(found[1], key), value)
        if isinstance(value, list):
            return [self.substitute(item, key) for item in cast("Iterable[object]", value)]
        if isinstance(value, dict):
            return self.table(cast("Mapping[str, object]", value), key)
        return value

    def redact(self, message: str) -> str:
        """`message` with every value that came from the environment as ${NAME} again."""
        for name, value in sorted(self._used.items(), key=lambda item: -len(item[1])):
            if value:
                message = message.replace(value, f"${{{name}}}")
        return message

    def _value(self, name: str, key: str) -> str:
        if not _VARIABLE_NAME.fullmatch(name):
            what = f"{key} says ${{{name}}}, which names no environment variable"
            remedy = "Write ${NAME}."
        elif name in self._environment:
            self._used[name] = self._environment[name]
            return self._environment[name]
        elif self._running:
            what = (
                f"{key} needs the environment variable {name}, which the running service (process "
                f"{os.getpid()}) was started without"
            )
            remedy = f"No shell changes its environment: restart the service with {name} set."
        else:
            what = (
                f"{key} needs the environment variable {name}, which is not set in the environment "
                f"of this command"
            )
            remedy = "Set it, and start again."
        self.missing.append((key, f"{self._path}: {what}. Nothing was started. {remedy}"))
        return ""
