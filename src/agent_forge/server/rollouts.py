"""`/v1/rollouts`: the rollouts, and what a person may do with one."""

from __future__ import annotations

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import UsageError
from agent_forge.refusal import Refusal
from agent_forge.rollout import Rollouts
from agent_forge.server.context import Context
from agent_forge.server.requests import read_json
from agent_forge.server.responses import json_response

ACTIONS = ("pause", "resume", "promote", "rollback")


def rollouts_of(context: Context) -> Rollouts:
    """The rollout store of a server."""
    rollouts: Rollouts = context.part("rollouts", lambda: Rollouts.open(context.place))
    return rollouts


def routes(context: Context) -> list[Route]:
    """The list, one rollout, and the actions."""

    def ls(request: Request) -> Response:
        rollouts = rollouts_of(context)
        return json_response({"rollouts": rollouts.names(), "policies": rollouts.policies()})

    def show(request: Request) -> Response:
        return json_response(_known(context, request.path_params["name"]))

    async def act(request: Request) -> Response:
        body = await read_json(request, "rollout")
        name, action = request.path_params["name"], request.path_params["action"]
        return json_response(await run_in_threadpool(_act, context, name, action, body))

    return [
        Route("/v1/rollouts", ls),
        Route("/v1/rollouts/{name}", show),
        Route("/v1/rollouts/{name}/{action}", act, methods=["POST"]),
    ]


def _known(context: Context, name: str) -> dict[str, Any]:
    if name not in rollouts_of(context).names():
        raise Refusal(404, f"there is no rollout {name[:100]!r}", code="rollout_not_found", fix="See GET /v1/rollouts")
    return rollouts_of(context).document(name)


def _act(context: Context, name: str, action: str, body: dict[str, Any]) -> dict[str, Any]:
    if action not in ACTIONS:
        raise Refusal(404, f"there is no action {action[:40]!r}", code="not_found", fix=f"Use {', '.join(ACTIONS)}")
    rollouts = rollouts_of(context)
    if name not in rollouts.names():
        _known(context, name)
    try:
        getattr(rollouts, action)(name, body.get("why") or "from the dashboard")
    except UsageError as error:  # it is there, but not in a state for this
        raise Refusal(409, error.what, code="wrong_state", fix=error.fix) from error
    context.hub.publish("rollouts", {"rollout": name, "action": action})
    return rollouts.document(name)
