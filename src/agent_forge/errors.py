"""The exceptions of Agent Forge.

Each says *what* is wrong, *where*, and what to do about it (*fix*). The CLI prints that as one sentence and exits
with `exit_code`: 2 when the call itself was wrong, 1 when the work failed.
"""

from __future__ import annotations


class AgentForgeError(Exception):
    """The root of the hierarchy.

    >>> print(AgentForgeError("no such run 'r7'", where="runs.db", fix="`agent-forge runs ls` lists the runs"))
    runs.db: no such run 'r7'. `agent-forge runs ls` lists the runs.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.fix:
            fix = self.fix if self.fix.endswith("?") else f"{self.fix.rstrip('.')}."
            text = f"{text.rstrip('.')}. {fix}"
        return text


class UsageError(AgentForgeError):
    """The call was wrong: nothing was done."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file, environment variable or `--set` that cannot be used."""


class MissingExtraError(UsageError):
    """A feature whose optional packages are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        from agent_forge.installed import install_command

        super().__init__(f"{feature} needs packages that are not installed", fix=f"Run `{install_command(extra)}`")


class PlanError(AgentForgeError):
    """A plan that cannot be read or run."""


class ToolError(AgentForgeError):
    """A tool that is unknown, was called wrongly, or failed."""


class ToolTimeout(ToolError):
    """A tool that took longer than its `timeout_s`."""


class ModelError(AgentForgeError):
    """A model that could not be reached or did not give a usable answer."""


class StoreError(AgentForgeError):
    """A database that is missing, foreign, damaged or full."""


class UnknownRunError(StoreError, UsageError):
    """A run that is not in the journal: the call named it wrongly."""


class TraceError(AgentForgeError):
    """Trace data that does not follow the schema."""


class DataError(AgentForgeError):
    """A data file or value that is not what it should be."""


class SandboxError(AgentForgeError):
    """Untrusted code could not be isolated, so it was not run."""


class CheckpointError(AgentForgeError):
    """A model folder that is damaged, or not the one that was meant."""


class HandoffError(AgentForgeError):
    """A phase received something that its contract does not allow."""


class MergeError(AgentForgeError):
    """A merge that could not be carried out."""
