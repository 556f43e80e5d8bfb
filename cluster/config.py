"""The configuration: frozen values, read once at start and handed on.

Precedence, weakest first: the defaults below < a YAML file (`--config` or RAYCALL_CONFIG) < environment variables < command
line options. Nothing is merged by truth: 0, "" and false are values like any other. An unknown key or variable, a wrong type
and a value out of range are errors that name what is wrong and where it was written.

The fields of the dataclasses are the single source; `SETTINGS` is the table of them that the documents are made from.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from cluster.errors import ConfigError, UsageError
from cluster.model.ids import parse_name

ENVIRONMENT_PREFIX = "RAYCALL_"
#: Variables with the prefix that the command line reads for itself; they are no settings.
CLIENT_VARIABLES = ("RAYCALL_CONFIG", "RAYCALL_KEY", "RAYCALL_URL")
#: Customary names of other tools' variables, weaker than the RAYCALL_ name of the same setting.
ALIASES = {"EMBED_MODEL": "embed.model", "EMBED_DIMENSIONS": "embed.dimensions", "OLLAMA_URL": "embed.ollama_url"}

_MIB = 1024 * 1024
_DATA_DIR = Path(".raycall")
_PROVIDERS = ("static", "sentence", "ollama", "openai")


def _setting(
    default: object,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    form: str = "",
) -> Any:
    """A field that is a setting. Bounds are inclusive; `form` names a check of `_FORMS`."""
    return field(default=default, metadata={"help": help_text, "low": low, "high": high, "choices": choices, "form": form})


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """The server's address and bounds."""

    host: str = _setting("127.0.0.1", "Address to listen on. 0.0.0.0 opens the server to the network.", form="filled")
    port: int = _setting(8000, "Port to listen on; the next free one if taken. 0 takes any.", low=0, high=65_535)
    max_body_bytes: int = _setting(128 * 1024, "A larger request body is refused with 413.", low=1024, high=16 * _MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayLocal:
    """The Ray that is started on this machine."""

    num_cpus: int = _setting(0, "CPUs in Ray's books. 0 takes all of the machine's.", low=0, high=1024)
    object_store_memory_bytes: int = _setting(
        128 * _MIB, "Shared memory for objects between processes.", low=75 * _MIB, high=1024**4
    )
    temp_dir: str = _setting(
        "", 'Folder for Ray\'s sockets and logs, at most 60 bytes long. "" takes one of its own.', form="short"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """How the index is spread over actors."""

    lexical_actors: int = _setting(1, "Actors that hold the BM25 index; each has a JVM.", low=1, high=256)
    vector_actors: int = _setting(1, "Actors that hold the vectors.", low=1, high=256)
    replicas: int = _setting(
        1,
        "Actors that hold the same part, each with memory of its own: one that is dead or slow is answered around.",
        low=1,
        high=16,
    )
    hung_s: float = _setting(
        60.0,
        "Seconds of silence after which an actor is ended and restarted; ten minutes at least while it opens. 0: never.",
        low=0.0,
        high=86_400.0,
    )
    target_rows_per_bucket: int = _setting(50_000, "A project is cut into ceil(rows / this) buckets.", low=1, high=100_000_000)
    jvm_heap_bytes: int = _setting(512 * _MIB, "Largest heap of a lexical actor's JVM.", low=64 * _MIB, high=1024**4)
    vector_threads: int = _setting(
        0, "Threads of one vector actor. 0 shares the CPUs out among all actors of shards.", low=0, high=256
    )
    vector_precision: str = _setting(
        "auto",
        "Vectors in memory; scores are float32's. auto: sq8 (a byte a number) above 100,000 rows of a project, else float32.",
        choices=("auto", "float32", "float16", "sq8"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexical:
    """How words are found."""

    analyzer: str = _setting(
        "text",
        "How text is read: text suits code and prose, english is Anserini's (k1 0.9, b 0.4). A change needs reindexing.",
        choices=("text", "english"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What was written since the served generation was built; the shards hold it in memory."""

    max_rows: int = _setting(
        5_000,
        "Changes of one bucket from which on a build is due. Rows beyond four times as many are left out and stated.",
        low=1,
        high=1_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest:
    """What is read from a folder, and how it is cut."""

    max_file_bytes: int = _setting(_MIB, "A larger file is skipped and counted.", low=1, high=1024 * _MIB)
    max_data_file_bytes: int = _setting(
        256 * 1024, "The same for data and lock files (JSON, CSV, ...).", low=1, high=1024 * _MIB
    )
    chunk_max_chars: int = _setting(1200, "Longest text of one row, in code points.", low=100, high=100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Which models turn text into vectors."""

    first: str = _setting("static", "Model of a new project's first generation: searchable within seconds.", choices=_PROVIDERS)
    then: str = _setting("sentence", 'Model that replaces it in the background; "" keeps the first.', choices=("", *_PROVIDERS))
    threads: int = _setting(0, "Threads of a local model. 0 takes all CPUs.", low=0, high=1024)
    timeout_s: float = _setting(30.0, "Longest wait for one call to a remote model while indexing.", low=0.1, high=600.0)
    query_timeout_s: float = _setting(
        1.0, "Longest wait for a query's vector; then the words answer alone.", low=0.01, high=60.0
    )
    model: str = _setting("nomic-embed-text", "Model name, for ollama and openai.", form="filled")
    dimensions: int = _setting(768, "Length of that model's vectors.", low=1, high=65_536)
    ollama_url: str = _setting("http://127.0.0.1:11434", "Address of Ollama.", form="url")
    openai_url: str = _setting("https://api.openai.com/v1", "Address of an OpenAI-compatible service.", form="url")
    openai_api_key_env: str = _setting("OPENAI_API_KEY", 'Name of the variable that holds its key. "" sends none.')


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How a question is answered."""

    deadline_s: float = _setting(
        2.0, "Longest time for one answer, waiting included; what is late is left out and stated.", low=0.05, high=300.0
    )
    max_batch: int = _setting(64, "Questions of one batch to a shard.", low=1, high=4096)
    max_related: int = _setting(20, "Related nodes of one hit.", low=0, high=100)
    query_log: str = _setting(
        "", 'File that every question is appended to, with who asked it; no key, no answer. "" records nothing.'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """What a new generation must keep before it is served."""

    gate: str = _setting(
        "", 'Recorded queries that a build is checked with; it stays unpublished when it fails. "" checks nothing.'
    )
    min_overlap: float = _setting(0.8, "Least mean overlap@10 with the served generation's answers.", low=0.0, high=1.0)
    max_latency_ratio: float = _setting(2.0, "Most that the median answer may slow down.", low=0.1, high=1000.0)
    min_score: float = _setting(
        -1.0,
        "Least mean nDCG@10 of the judged queries. -1: no more than 0.02 below the served generation's.",
        low=-1.0,
        high=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """How requests reach the application."""

    ha_proxy: bool = _setting(True, "HAProxy in front of the application; without it, Ray Serve's own proxy.")
    micro_batching: bool = _setting(True, "Questions that wait for the same shard travel together.")
    max_ongoing_requests: int = _setting(
        256,
        "Questions in work at once, at most; fewer while they take more than half of search.deadline_s. More wait, or get 429.",
        low=1,
        high=100_000,
    )
    max_waiting_requests: int = _setting(
        1024, "Questions that wait, at most; more get 429 at once, as do those that would wait too long.", low=1, high=100_000
    )
    bulk_deadline_s: float = _setting(
        60.0,
        "Longest time for one request with many rows; rows that are late are refused, each by itself.",
        low=0.05,
        high=3600.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is logged, to stderr."""

    level: str = _setting("info", "Least severe level that is logged.", choices=("debug", "info", "warning", "error"))
    format: str = _setting("text", "One line of text, or one JSON object, a record.", choices=("text", "json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. `data_dir` is taken as it is written, relative to the working directory."""

    account: str = _setting("local", "The account that this process serves, and the only one.", form="name")
    data_dir: Path = _setting(_DATA_DIR, "Folder of everything that is kept.")  # noqa: RUF009 (a path is immutable)
    http: Http = field(default_factory=Http)
    ray: RayLocal = field(default_factory=RayLocal)
    shards: Shards = field(default_factory=Shards)
    delta: Delta = field(default_factory=Delta)
    lexical: Lexical = field(default_factory=Lexical)
    ingest: Ingest = field(default_factory=Ingest)
    embed: Embed = field(default_factory=Embed)
    search: Search = field(default_factory=Search)
    publish: Publish = field(default_factory=Publish)
    ingress: Ingress = field(default_factory=Ingress)
    log: Log = field(default_factory=Log)

    def values(self) -> dict[str, object]:
        """Every setting's value by its key, in the order of `SETTINGS`."""
        found: dict[str, object] = {}
        for setting in SETTINGS:
            section, _, name = setting.key.rpartition(".")
            found[setting.key] = getattr(getattr(self, section) if section else self, name)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table of settings."""

    #: "section.name", or "name" at the top level.
    key: str
    type: type
    default: object
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    form: str

    @property
    def variable(self) -> str:
        """The environment variable of this setting."""
        return ENVIRONMENT_PREFIX + self.key.replace(".", "_").upper()

    @property
    def allowed(self) -> str:
        """The range in words."""
        if self.choices:
            return "one of " + ", ".join(choice or '""' for choice in self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.low} to {self.high}" if self.low != self.high else f"{self.low}"
        return {bool: "true or false", Path: "a path"}.get(self.type, _FORMS.get(self.form, "text"))

    def check(self, value: object) -> object:
        """`value` as this setting's type; raises ValueError, in words, when it has another or is out of range."""
        if self.type is float and type(value) is int:
            value = float(value)
        if self.type is Path and type(value) is str:
            value = _path(_formed(value, "filled"))
        if not isinstance(value, self.type) or (isinstance(value, bool) and self.type is not bool):
            raise ValueError(f"must be {_TYPE_WORDS[self.type]}")
        if isinstance(value, (int, float)) and not self._within(value):
            raise ValueError(f"must be {self.allowed}")
        if isinstance(value, str):
            if self.choices and value not in self.choices:
                raise ValueError(f"must be {self.allowed}")
            return _formed(value, self.form)
        return value

    def parse(self, text: str) -> object:
        """The value that an environment variable's text stands for; raises ValueError as `check` does."""
        if self.type is bool:
            if text.strip().lower() not in _BOOLEANS:
                raise ValueError(f"must be {self.allowed}")
            return _BOOLEANS[text.strip().lower()]
        return self.check(_number(text, self.type) if self.type in (int, float) else text)

    def _within(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text (in quotes)", Path: "a path (text)"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_FORMS = {
    "filled": "text that is not empty",
    "url": "an http or https address",
    "name": "a name",
    "short": "a path of at most 60 bytes",
}


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("must be a path: nobody has the home folder that it starts with") from error


def _number(text: str, kind: type) -> object:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"must be {_TYPE_WORDS[kind]}") from error


def _formed(value: str, form: str) -> str:
    if any(ord(char) < 32 or char == "\x7f" for char in value):
        raise ValueError("must not contain control characters")
    if form == "name":
        try:
            return parse_name(value, "it")
        except UsageError as error:
            raise ValueError("must be 1 to 100 letters, digits, '.', '_' or '-', not starting with '.' or '-'") from error
    host = value.partition("://")[2].partition("/")[0]
    bad = {
        "filled": not value.strip(),
        "url": not value.startswith(("http://", "https://")) or not host or " " in value,
        "short": len(value.encode("utf-8", "surrogateescape")) > 60,
    }
    if bad.get(form):
        raise ValueError(f"must be {_FORMS[form]}")
    return value


def _settings_of(section: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(section)
    for item in fields(section):
        if is_dataclass(hints[item.name]):
            yield from _settings_of(hints[item.name], f"{item.name}.")
        else:
            yield Setting(key=prefix + item.name, type=hints[item.name], default=item.default, **item.metadata)


#: Every setting, in the order of the documents.
SETTINGS: tuple[Setting, ...] = tuple(_settings_of(Config))
_BY_KEY = {setting.key: setting for setting in SETTINGS}
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS}


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> Config:
    """The configuration from the file at `path`, the environment `environ` and `overrides` (key -> typed value).

    Each may be None: nothing is read then. Raises ConfigError, whose `field` is the key or variable at fault.
    """
    values: dict[str, object] = {}
    if path is not None:
        from cluster.config_file import read

        for key, (value, place) in read(path).items():
            values[key] = _checked(_known(key, place), value, f"{key} in {place}")
    values.update(_from_environment(environ or {}))
    for key, value in (overrides or {}).items():
        values[key] = _checked(_known(key, "the options"), value, key)
    config = _built(values)
    remote = {config.embed.first, config.embed.then} & {"ollama", "openai"}
    if len(remote) == 2:
        raise ConfigError(
            "embed.first and embed.then name two remote services; embed.model can describe one", field="embed.then"
        )
    return config


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    for variable in sorted(ALIASES.keys() & environ.keys()):
        yield ALIASES[variable], _parsed(_BY_KEY[ALIASES[variable]], environ[variable], variable)
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        if variable not in _BY_VARIABLE:
            near = _nearest(variable, [*_BY_VARIABLE, *CLIENT_VARIABLES])
            raise ConfigError(f"unknown environment variable {variable}{near}", field=variable)
        setting = _BY_VARIABLE[variable]
        yield setting.key, _parsed(setting, environ[variable], variable)


def _known(key: str, place: str) -> Setting:
    if key not in _BY_KEY:
        raise ConfigError(f"unknown setting {key} in {place}{_nearest(key, list(_BY_KEY))}", field=key)
    return _BY_KEY[key]


def _nearest(name: str, known: list[str]) -> str:
    # A key that only lost or gained its section is nearer than one that merely looks alike.
    leaf = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == leaf]
    near = same[:1] or difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]}?" if near else ""


def _parsed(setting: Setting, text: str, variable: str) -> object:
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{variable} {error}; it is {text[:100]!r}", field=variable) from error


def _checked(setting: Setting, value: object, where: str) -> object:
    try:
        return setting.check(value)
    except ValueError as error:
        raise ConfigError(f"{where} {error}; it is {str(value)[:100]!r}", field=setting.key) from error


def _built(values: Mapping[str, object]) -> Config:
    def of(section: str) -> dict[str, Any]:
        return {key.rpartition(".")[2]: value for key, value in values.items() if key.rpartition(".")[0] == section}

    return Config(
        **of(""),
        http=Http(**of("http")),
        ray=RayLocal(**of("ray")),
        shards=Shards(**of("shards")),
        delta=Delta(**of("delta")),
        lexical=Lexical(**of("lexical")),
        ingest=Ingest(**of("ingest")),
        embed=Embed(**of("embed")),
        search=Search(**of("search")),
        publish=Publish(**of("publish")),
        ingress=Ingress(**of("ingress")),
        log=Log(**of("log")),
    )
