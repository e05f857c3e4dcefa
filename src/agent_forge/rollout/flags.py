"""Feature flags: typed values that a file defines and people change while programs run.

Definitions come from `flags.yaml` in the home folder (or $AGENT_FORGE_FLAGS), where they are under version control.
Changes at run time (a value, a kill) go to the rollout store, each with a line in its audit log. Both are looked at on
every evaluation, so the next request sees a kill. In order of strength:

1. killed: the flag has its default, whatever else is said
2. an environment variable, AGENT_FORGE_FLAG_<NAME> or the one that the flag names
3. a value set at run time, for this environment or for all
4. the rules, those of the environment first; then the value of the environment
5. the default
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent_forge.config import as_dict, build, parse
from agent_forge.database import is_url
from agent_forge.errors import AgentForgeError, ConfigError, UsageError
from agent_forge.files import file_digest
from agent_forge.home import home_path
from agent_forge.rollout.bucketing import bucket
from agent_forge.rollout.rollouts import FILE as STORE
from agent_forge.rollout.rollouts import Rollouts
from agent_forge.rollout.state import iso
from agent_forge.settings import trace_store

FILE = "flags.yaml"
ENVIRONMENT = "AGENT_FORGE_ENVIRONMENT"
PRODUCTION = "production"
TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,), "integer": (int,), "float": (float, int), "string": (str,), "object": (dict, list),
}  # fmt: skip
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FlagRule:
    """A value for units whose attributes all match (a list: one of them), or for a share of those, by bucket."""

    value: Any
    when: dict[str, Any] = field(default_factory=dict)
    share: float | None = field(default=None, metadata={"at_least": 0, "at_most": 1})

    def reason(self, flag: str, unit: str | None, attributes: Mapping[str, Any]) -> str | None:
        """Why the rule applies; None if it does not."""
        for name, wanted in self.when.items():
            seen = unit if name == "unit" else attributes.get(name)
            if seen not in (wanted if isinstance(wanted, list) else [wanted]):
                return None
        if self.share is None:
            return "TARGETING_MATCH"
        return "SPLIT" if unit is not None and bucket(flag, unit) < self.share else None


@dataclass(frozen=True)
class FlagEnvironment:
    """What holds in one environment only."""

    value: Any = None
    rules: tuple[FlagRule, ...] = ()


@dataclass(frozen=True)
class Flag:
    """The definition of a flag. Every value in it must be of its type."""

    default: Any
    type: Literal["boolean", "integer", "float", "string", "object"] = "boolean"
    description: str = ""
    variable: str | None = None  # another environment variable that sets it
    rules: tuple[FlagRule, ...] = ()
    environments: dict[str, FlagEnvironment] = field(default_factory=dict)

    def check(self, name: str, value: Any) -> Any:
        """The value, if it is of the flag's type. Raises UsageError."""
        of_type = isinstance(value, TYPES[self.type]) and (self.type == "boolean" or not isinstance(value, bool))
        if not of_type:
            raise UsageError(f"flag {name!r} is of type {self.type}, and {value!r} is not")
        return value

    def check_all(self, name: str) -> None:
        self.check(name, self.default)
        for rule in (*self.rules, *(rule for each in self.environments.values() for rule in each.rules)):
            self.check(name, rule.value)
        for each in self.environments.values():
            if each.value is not None:
                self.check(name, each.value)


@dataclass(frozen=True)
class FlagFile:
    flags: dict[str, Flag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A value and the reason for it, in OpenFeature's words; `why` says more where something is wrong."""

    value: Any
    reason: str
    why: str | None = None


# GAP_ENABLED as the seeds have it. There, false is the default; here, where it is unset, the strategy is chosen by the
# request (docs/rollout.md).
BUILTIN = {
    "gap_enabled": Flag(
        default=False,
        description="true: plan a graph and run it in parallel; false: one call per turn; unset: by the request",
        variable="GAP_ENABLED",
    )
}


class Flags:
    """The flags of a home folder in one environment.

    >>> import tempfile
    >>> flags = Flags(tempfile.mkdtemp())
    >>> flags.value("new_search", False)
    False
    >>> flags.define("new_search", Flag(default=False, rules=(FlagRule(True, {"country": ["DE", "FR"]}),)))
    >>> flags.value("new_search", False, unit="user-1", country="DE")
    True
    >>> flags.kill("new_search")
    >>> flags.value("new_search", False, unit="user-1", country="DE")
    False
    """

    def __init__(self, home: str | os.PathLike[str] | None = None, environment: str | None = None) -> None:
        self.environment = environment or os.environ.get(ENVIRONMENT) or PRODUCTION
        self._home = home
        place = trace_store(home)
        self._url = place if place is not None and is_url(place) else None
        folder = home_path(None if self._url else place)
        self._file = Path(os.environ.get("AGENT_FORGE_FLAGS") or folder / FILE)
        self._store = folder / STORE
        self._rollouts: Rollouts | None = None
        self._seen: tuple[int, int, int] | None = None
        self._defined: dict[str, Flag] = {}
        self._changed: dict[str, dict[str, Any]] = {}
        self._read_file(first=True)

    # Reading

    def value(self, name: str, default: Any, *, unit: str | None = None, **attributes: Any) -> Any:
        """The value of a flag, or `default` for one that nobody has defined. Never raises."""
        found = self.evaluate(name, unit=unit, **attributes)
        return default if found.reason == "ERROR" else found.value

    def evaluate(self, name: str, *, unit: str | None = None, **attributes: Any) -> FlagValue:
        """The value of a flag and the reason for it."""
        self._read_file()
        changes = self._changes()
        flag = self._flag(name, changes)
        if flag is None:
            return FlagValue(None, "ERROR", f"there is no flag {name!r}")
        change = changes.get(name, {})
        if change.get("killed"):
            return FlagValue(flag.default, "DISABLED")
        for variable in (f"AGENT_FORGE_FLAG_{name.upper()}", flag.variable):
            if variable and (text := os.environ.get(variable)):
                try:
                    return FlagValue(flag.check(name, parse_value(text, flag.type)), "STATIC")
                except UsageError as error:
                    log.warning("%s is ignored: %s", variable, error)
        values = change.get("values", {})
        for environment in (self.environment, ""):
            if environment in values:
                return FlagValue(values[environment], "STATIC")
        own = flag.environments.get(self.environment, FlagEnvironment())
        for rule in (*own.rules, *flag.rules):
            if (reason := rule.reason(name, unit, attributes)) is not None:
                return FlagValue(rule.value, reason)
        return FlagValue(own.value, "STATIC") if own.value is not None else FlagValue(flag.default, "DEFAULT")

    def all(self) -> dict[str, Flag]:
        """The definition of every flag."""
        self._read_file()
        changes = self._changes()
        names = sorted({*BUILTIN, *self._defined, *(name for name, each in changes.items() if each.get("flag"))})
        return {name: flag for name in names if (flag := self._flag(name, changes)) is not None}

    def is_killed(self, name: str) -> bool:
        return bool(self._changes().get(name, {}).get("killed"))

    def _flag(self, name: str, changes: Mapping[str, Mapping[str, Any]]) -> Flag | None:
        stored = changes.get(name, {}).get("flag")
        return self._defined.get(name) or (build(Flag, stored) if stored else BUILTIN.get(name))

    def _read_file(self, *, first: bool = False) -> None:
        """Reads the file if it was written to. One that cannot be used is an error at first, later the last good one
        stays in force."""
        try:
            stat = self._file.stat()
        except FileNotFoundError:
            self._defined = {}
            return
        seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if seen == self._seen:
            return
        try:
            defined = parse(FlagFile, self._file.read_text("utf-8"), str(self._file)).flags
            for name, flag in defined.items():
                flag.check_all(name)
        except (AgentForgeError, ValueError) as error:
            if first:
                raise ConfigError(
                    str(error), where=None if str(self._file) in str(error) else str(self._file)
                ) from error
            log.error("the flags stay as they were: %s", error)
            self._seen = seen
            return
        self._defined, self._seen = defined, seen
        self._note_file()

    def _changes(self) -> dict[str, dict[str, Any]]:
        """What was changed at run time; the last good state where the store cannot be read."""
        if self._url is None and not self._store.exists():
            return {}
        try:
            with self._opened().db.read() as cursor:
                rows = cursor.execute("SELECT name, document FROM flags").fetchall()
            self._changed = {name: json.loads(document) for name, document in rows}
        except (AgentForgeError, ValueError) as error:
            log.error("the flags stay as they were: %s", error)
        return self._changed

    # Changing

    def define(self, name: str, flag: Flag, who: str | None = None) -> None:
        """Defines a flag in the store. Raises UsageError for a value that is not of its type."""
        flag.check_all(name)
        self._change(name, {"flag": as_dict(flag)}, f"define {name}", who)

    def set(self, name: str, value: Any, *, environment: str | None = None, who: str | None = None) -> None:
        """Sets a value for an environment, or for all. Raises UsageError for an unknown flag or a wrong type."""
        self._known(name).check(name, value)
        where = environment or ""
        self._change(name, {"values": {where: value}}, f"set {name}{f' in {where}' if where else ''}", who)

    def unset(self, name: str, *, environment: str | None = None, who: str | None = None) -> None:
        """Takes back what `set` did."""
        self._known(name)
        self._change(name, {"values": {environment or "": None}}, f"unset {name}", who)

    def kill(self, name: str, who: str | None = None) -> None:
        """Gives the flag its default everywhere, from the next evaluation on in every process."""
        self._known(name)
        self._change(name, {"killed": True}, f"kill {name}", who)

    def revive(self, name: str, who: str | None = None) -> None:
        """Takes back a kill."""
        self._known(name)
        self._change(name, {"killed": False}, f"revive {name}", who)

    def audit(self) -> list[dict[str, Any]]:
        """Every change, the oldest first."""
        with self._opened().db.read() as cursor:
            rows = cursor.execute("SELECT at_s, who, what, before, after FROM audit ORDER BY id").fetchall()
        loaded = [
            (iso(at_s), who, what, *(text and json.loads(text) for text in texts)) for at_s, who, what, *texts in rows
        ]
        return [dict(zip(("at", "who", "what", "before", "after"), row, strict=True)) for row in loaded]

    def close(self) -> None:
        if self._rollouts is not None:
            self._rollouts.close()

    def _known(self, name: str) -> Flag:
        if (flag := self.all().get(name)) is None:
            raise UsageError(f"there is no flag {name!r}", fix=f"Define it in {self._file}")
        return flag

    def _opened(self) -> Rollouts:
        if self._rollouts is None:
            self._rollouts = Rollouts.open(self._home)
        return self._rollouts

    def _change(self, name: str, change: dict[str, Any], what: str, who: str | None) -> None:
        with self._opened().db.write() as cursor:
            row = cursor.execute("SELECT document FROM flags WHERE name = ?", (name,)).fetchone()
            before: dict[str, Any] = {} if row is None else json.loads(row[0])
            values = {**before.get("values", {}), **change.get("values", {})}
            after = {**before, **change, "values": {key: each for key, each in values.items() if each is not None}}
            cursor.execute("DELETE FROM flags WHERE name = ?", (name,))
            cursor.execute("INSERT INTO flags VALUES (?, ?)", (name, json.dumps(after)))
            _audit(cursor, who, what, before, after)

    def _note_file(self) -> None:
        """An edit of the file is a change like any other: whoever notices it first writes it down."""
        if self._url is None and not self._store.exists():
            return
        digest = file_digest(self._file)
        with self._opened().db.write() as cursor:
            last = cursor.execute(
                "SELECT after FROM audit WHERE what = ? ORDER BY id DESC LIMIT 1", (f"edit {self._file}",)
            ).fetchone()
            before = None if last is None else json.loads(last[0])
            if before != digest:
                _audit(cursor, "file", f"edit {self._file}", before, digest)


def _audit(cursor: Any, who: str | None, what: str, before: Any, after: Any) -> None:
    cursor.execute(
        "INSERT INTO audit (at_s, who, what, before, after) VALUES (?, ?, ?, ?, ?)",
        (time.time(), who or _user(), what, json.dumps(before), json.dumps(after)),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return str(os.getuid())


def parse_value(text: str, kind: str) -> Any:
    """A value as it is written in an environment variable or on a command line. Raises UsageError."""
    if kind == "string":
        return text
    if kind == "boolean" and text.strip().lower() in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        return text.strip().lower() in ("true", "1", "yes", "on")
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not of type {kind}") from error
