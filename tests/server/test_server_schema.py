"""schemathesis sends what our OpenAPI document allows and what it forbids: no answer is a fault of the server."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from agent_forge.server.openapi import document

EXAMPLES = 2  # of each operation and kind
LABELS = [f"{method.upper()} {path}" for path, entry in document()["paths"].items() for method in entry]


@cache
def operations() -> dict[str, Any]:
    """By label. Only the process that sends them imports schemathesis, which takes seconds."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: the extra `dev` has it")
    schema = schemathesis.openapi.from_dict(document())
    return {one.label: one for one in (result.ok() for result in schema.get_all_operations())}


def steer(body: dict[str, Any], mode: str) -> None:
    """To what there is here, and to answers that take no minutes; all the rest stays as it was made up."""
    body.pop("planner", None)  # "local" would load a real model
    if mode == "POSITIVE" and ("prompt" in body or "messages" in body):
        body.update(model="tiny", max_tokens=4)
        body.pop("max_completion_tokens", None)


@pytest.mark.untraced
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("label", LABELS)
def test_no_request_makes_the_server_fail(live: Any, label: str, mode: str) -> None:
    operation = operations()[label]
    import schemathesis

    cases = operation.as_strategy(generation_mode=getattr(schemathesis.GenerationMode, mode))
    seen: list[int] = []

    @seed(20261115)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases)
    def attack(case: Any) -> None:
        if isinstance(case.body, dict):
            steer(case.body, mode)
        answer = case.call(base_url=live.url, timeout=60)
        seen.append(answer.status_code)
        if answer.status_code != 503:  # "not now" is an answer, with its reason
            case.validate_response(answer, checks=(schemathesis.checks.not_a_server_error,))

    try:
        attack()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):  # nothing forbidden can be made for it
            raise
    if mode == "POSITIVE":
        assert seen


def test_the_document_is_valid_openapi_and_names_every_api_route(plain: Any) -> None:
    from starlette.routing import Route

    with plain.client() as client:
        document = client.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, entry in document["paths"].items() for method in entry}
    served = {
        (method, route.path)
        for route in plain.app.routes
        if isinstance(route, Route) and route.path.startswith(("/v1/", "/metrics", "/healthz", "/readyz", "/openapi"))
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert described == served


def test_a_secured_document_says_so() -> None:
    from agent_forge.server.openapi import document

    assert document(secured=True)["security"] == [{"token": []}]
    assert "security" not in document()
