"""A request that is not carried out. Without a web framework, so that engines can refuse too."""

from __future__ import annotations

from collections.abc import Mapping

from agent_forge.errors import AgentForgeError


class Refusal(AgentForgeError):
    """Why a request is refused. `status` is the HTTP status, `code` a word for programs, `param` the field at fault."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        code: str | None = None,
        param: str | None = None,
        fix: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(what, fix=fix)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
