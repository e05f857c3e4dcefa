"""A trace is scored over HTTP, and the page of the trace shows it."""

from __future__ import annotations

from typing import Any

import pytest

from agent_forge import run


@pytest.fixture(scope="module")
def trace(plain: Any) -> str:
    return str(run("Who is older, Manuel Antonio or Wilfred MacDonald?", home=plain.context.home).trace_id)


def test_scores_of_several_judges(plain: Any, trace: str) -> None:
    with plain.client() as client:
        page = client.get(f"/traces/{trace}.json").json()
        assert (page["figures"]["reward"], page["outcome"], page["credit_by_agent"]) == (None, None, {})
        assert all(row["credit"] is None for row in page["rows"])
        first = client.post(f"/v1/traces/{trace}/reward", json={"value": 1})
        assert first.status_code == 200, first.text
        assert (first.json()["judge"], first.json()["reward"]) == ("user", 1.0)
        body = {"value": 0, "by": "ann", "components": {"style": 0.5}, "comment": "Dull."}
        second = client.post(f"/v1/traces/{trace[:16]}/reward", json=body).json()
        assert second["reward"] == 0.5
        assert second["scores"][1] == {"span_id": second["span_id"], "judge": "ann", "value": 0.0,
                                       "components": {"style": 0.5}, "comment": "Dull."}  # fmt: skip
        page = client.get(f"/traces/{trace}.json").json()
        assert (page["figures"]["reward"], page["outcome"]) == (0.5, 0.5)
        assert page["credit_by_agent"] == {"default": pytest.approx(0.5)}
        html = client.get(f"/traces/{trace}", headers={"Accept": "text/html"}).text
        assert f'data-score-at="/v1/traces/{trace}/reward"' in html
        assert "You gave 1." in html
        task = next(row["id"] for row in page["rows"] if row["name"] == "combine")
        of_task = client.post(f"/v1/traces/{trace}/reward", json={"value": 1, "span": task}).json()
        assert (of_task["span_id"], of_task["reward"]) == (task, 0.5)


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"value": 2}, 400), ({"value": "good"}, 400), ({"value": 1, "colour": 1}, 400),
     ({"value": 1, "span": "f" * 16}, 400), ({"value": 1, "by": ""}, 400)],
)  # fmt: skip
def test_bad_scores_are_refused(plain: Any, trace: str, body: dict[str, Any], status: int) -> None:
    with plain.client() as client:
        before = client.get(f"/traces/{trace}.json").json()["scores"]
        answer = client.post(f"/v1/traces/{trace}/reward", json=body)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        assert client.get(f"/traces/{trace}.json").json()["scores"] == before


def test_only_known_traces_and_own_pages(plain: Any, trace: str) -> None:
    with plain.client() as client:
        assert client.post(f"/v1/traces/{'f' * 32}/reward", json={"value": 1}).status_code == 404
        elsewhere = {"Origin": "http://elsewhere.example"}
        assert client.post(f"/v1/traces/{trace}/reward", json={"value": 0}, headers=elsewhere).status_code == 403
        form = client.post(f"/v1/traces/{trace}/reward", data={"value": "0"})
        assert form.status_code == 415, "what a page of another origin could send without being asked"
