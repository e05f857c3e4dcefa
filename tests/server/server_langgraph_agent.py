"""A LangGraph agent under OpenInference, exporting to the server it asks: run in an environment that has them."""

from __future__ import annotations

import sys
from typing import Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor


class State(TypedDict):
    question: str
    answer: str


def main(url: str) -> str:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url}/v1/traces")))
    LangChainInstrumentor().instrument(tracer_provider=provider)
    model = ChatOpenAI(model="tiny", base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=12, seed=None)

    def ask(state: State) -> dict[str, Any]:
        return {"answer": str(model.invoke(state["question"]).content)}

    graph = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    with provider.get_tracer("test").start_as_current_span("conversation") as span:
        graph.compile().invoke({"question": "hi", "answer": ""})
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
    provider.force_flush()
    provider.shutdown()
    return trace_id


if __name__ == "__main__":
    print(main(sys.argv[1]))
