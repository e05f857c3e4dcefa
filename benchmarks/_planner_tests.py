"""Rows that planners are judged on, and batched writing of plans on a GPU. BFCL is only ever read here."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_forge.agents.planner.batch import SchemaTool
from agent_forge.agents.planner.tools import ToolIndex
from agent_forge.agents.tools.schemas import plain_schema
from agent_forge.learning.datasets import read_set, read_sgd, seal_tools, ultratool_tools
from agent_forge.learning.rows import PlanRow
from agent_forge.tasks.calls import accepted_calls, score_calls

HELD_OUT_FIELDS = 0.12  # of Seal-Tools' fields: "other domains"
SHOWN = 8


@dataclass(frozen=True)
class Judged:
    """A request with its tools, and a judge of calls: whether they are right, and any other figures."""

    kind: str
    row: PlanRow
    judge: Callable[[Sequence[Mapping[str, Any]]], dict[str, float]] = field(repr=False)
    answers: Sequence[Mapping[str, Any]] | None = None  # of BFCL: what it accepts


@cache
def held_out_ids(folder: Path) -> frozenset[str]:
    """The rows that training must not see, beside SGD's dev services and BFCL."""
    fields = held_out_fields(folder)
    tools = seal_tools(folder)
    seal = [
        row.id for row in read_set("seal_tools", folder) if any(tools[t["name"]]["field"] in fields for t in row.tools)
    ]
    rng = random.Random(7)
    others = [
        row.id
        for name, count in (("ultratool", 300), ("break", 200), ("snips", 150))
        for row in rng.sample(read_set(name, folder), count)
    ]
    known = rng.sample([row.id for row in read_set("seal_tools", folder) if row.id not in set(seal)], 60)
    return frozenset([*seal, *others, *known])


@cache
def held_out_fields(folder: Path) -> frozenset[str]:
    fields = sorted({tool["field"] for tool in seal_tools(folder).values()})
    return frozenset(random.Random(5).sample(fields, round(len(fields) * HELD_OUT_FIELDS)))


def judged_rows(folder: Path, per_set: int | None = None, *, tuning: bool = False) -> list[Judged]:
    """All rows, or some of each set (always the same ones). With `tuning` those that decoding may be tuned on."""
    rows: list[Judged] = []
    for maker in (sgd_known, seal_learnt, generated) if tuning else (bfcl, sgd, seal, ultratool, snips, foreign):
        made = list(maker(folder))
        by_kind: dict[str, list[Judged]] = {}
        for each in made:
            by_kind.setdefault(each.kind, []).append(each)
        for kind in by_kind.values():
            random.Random(3).shuffle(kind)
            rows += kind[:per_set]
    return rows


def bfcl(folder: Path) -> Iterator[Judged]:
    for name in ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"):
        place = folder / "bfcl"
        answers = {}
        if name != "irrelevance":
            answers = {
                entry["id"]: entry["ground_truth"]
                for entry in map(json.loads, (place / f"{name}_answers.jsonl").open())
            }
        with gzip.open(place / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                tools = tuple(as_function(each) for each in entry["function"])
                row = PlanRow(entry["id"], entry["question"][0][-1]["content"], tools)
                right = answers.get(entry["id"])
                yield Judged(
                    f"bfcl {name}",
                    row,
                    lambda calls, right=right: {
                        "right": float(accepted_calls(right, calls) if right is not None else not calls)
                    },
                    right,
                )


def as_function(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": entry["name"],
        "description": entry.get("description") or "",
        "parameters": plain_schema(entry["parameters"]),
    }


def _scored(row: PlanRow) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, float]]:
    def judge(calls: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        score = score_calls(row.calls, calls)
        return {"right": float(score.right), "node": score.tools, "args": score.arguments, "edge": score.edges}

    return judge


def sgd(folder: Path) -> Iterator[Judged]:
    """Requests over services that the training split does not have, beside other services' tools."""
    known = {service for row in read_sgd(folder, "train") for service in row.meta["services"]}
    rows = list(read_sgd(folder, "dev"))
    tools = {tool["name"]: tool for row in rows for tool in row.tools}
    rng = random.Random(1)
    for row in rows:
        if row.faults() or any(service in known for service in row.meta["services"]):
            continue
        yield Judged("sgd unseen", _shown(row, list(tools.values()), rng), _scored(row))


def sgd_known(folder: Path) -> Iterator[Judged]:
    """For tuning: requests of the development split, which training did not see, over services that it did."""
    known = {service for row in read_sgd(folder, "train") for service in row.meta["services"]}
    rows = list(read_sgd(folder, "dev"))
    tools = {tool["name"]: tool for row in rows for tool in row.tools}
    rng = random.Random(2)
    for row in rows:
        if not row.faults() and all(service in known for service in row.meta["services"]):
            yield Judged("tune sgd", _shown(row, list(tools.values()), rng), _scored(row))


def seal_learnt(folder: Path) -> Iterator[Judged]:
    """For tuning: rows that training saw, beside the tools that are nearest to them."""
    tools = seal_tools(folder)
    index = ToolIndex.of([SchemaTool.of(tool) for tool in tools.values()])
    functions = list(tools.values())
    held = held_out_ids(folder)
    for row in random.Random(4).sample([row for row in read_set("seal_tools", folder) if row.id not in held], 150):
        near = [functions[place] for place in by_tf_idf(index, row.request, 14)]
        yield Judged("tune seal", _shown(row, near, random.Random(row.id), keep_order=True), _scored(row))


def generated(folder: Path) -> Iterator[Judged]:
    """For tuning: requests made from schemas that training saw, by another seed; some that no tool serves."""
    from agent_forge.learning.generate import Generator

    held = held_out_fields(folder)
    catalogue = [tool for tool in seal_tools(folder).values() if tool["field"] not in held]
    generator = Generator(catalogue, seed=99, restyle=True)
    for number in range(60):
        for place, row in enumerate(generator.sheet(5)):
            if not row.faults():
                yield Judged("tune generated", replace(row, id=f"{number}-{place}"), _scored(row))


def seal(folder: Path) -> Iterator[Judged]:
    tools = seal_tools(folder)
    index = ToolIndex.of([SchemaTool.of(tool) for tool in tools.values()])
    functions = list(tools.values())
    held = held_out_ids(folder)
    fields = held_out_fields(folder)
    for row in read_set("seal_tools", folder):
        if row.id in held:
            other = any(tools[tool["name"]]["field"] in fields for tool in row.tools)
            near = [functions[place] for place in by_tf_idf(index, row.request, 14)]
            shown = _shown(row, near, random.Random(row.id), keep_order=True)
            yield Judged("seal other domains" if other else "seal known domains", shown, _scored(row))


def by_tf_idf(index: ToolIndex, text: str, count: int) -> list[int]:
    """The places of the tools nearest to a text by TF-IDF: what planners were shown before, and what they still are
    beside the right tools in these tests."""
    scores = index.scores(text)
    return sorted(range(len(index.tools)), key=lambda place: (-scores.get(place, 0.0), place))[:count]


def ultratool(folder: Path) -> Iterator[Judged]:
    held, tools = held_out_ids(folder), list(ultratool_tools(folder).values())
    for row in read_set("ultratool", folder):
        if row.id in held:
            yield Judged("ultratool", _shown(row, tools, random.Random(row.id)), _scored(row))


def snips(folder: Path) -> Iterator[Judged]:
    held = held_out_ids(folder)
    for row in read_set("snips", folder):
        if row.id in held:
            yield Judged("snips", row, _scored(row))


FOREIGN_TOOLS = [
    as_function({"name": name, "description": text, "parameters": {"type": "object", "required": list(kinds),
                 "properties": {key: {"type": kind} for key, kind in kinds.items()}}})
    for name, text, kinds in (
        ("get_weather", "Current weather in a city", {"city": "string"}),
        ("send_message", "Send a message to a person", {"person": "string", "text": "string"}),
        ("set_timer", "Set a timer", {"minutes": "integer"}),
        ("play_song", "Play a song", {"title": "string"}),
    )
]  # fmt: skip
# One request a line: the tool and its values, or nothing where no tool serves.
FOREIGN = {
    "German": """Wie ist das Wetter in Oslo?|get_weather|Oslo
        Stell einen Timer auf 12 Minuten.|set_timer|12
        Spiel das Lied Yesterday.|play_song|Yesterday
        Schick Anna die Nachricht "Ich komme später".|send_message|Anna|Ich komme später
        Regnet es gerade in Hamburg?|get_weather|Hamburg
        Weck mich bitte in 25 Minuten.|set_timer|25
        Ich möchte Bohemian Rhapsody hören.|play_song|Bohemian Rhapsody
        Sag Peter "Das Essen ist fertig".|send_message|Peter|Das Essen ist fertig
        Wer hat den Faust geschrieben?
        Lösche alle meine Dateien.""",
    "French": """Quel temps fait-il à Lyon ?|get_weather|Lyon
        Mets un minuteur de 10 minutes.|set_timer|10
        Joue la chanson Imagine.|play_song|Imagine
        Envoie à Paul le message "Je suis en retard".|send_message|Paul|Je suis en retard
        Est-ce qu'il pleut à Bergen ?|get_weather|Bergen
        Préviens-moi dans 45 minutes.|set_timer|45
        Je voudrais écouter Yellow Submarine.|play_song|Yellow Submarine
        Dis à Marie "À demain".|send_message|Marie|À demain
        Qui a peint la Joconde ?
        Réserve un vol pour Rome.""",
    "Spanish": """¿Qué tiempo hace en Madrid?|get_weather|Madrid
        Pon un temporizador de 15 minutos.|set_timer|15
        Pon la canción Despacito.|play_song|Despacito
        Envía a Juan el mensaje "Llego tarde".|send_message|Juan|Llego tarde
        ¿Está lloviendo en Lima?|get_weather|Lima
        Avísame dentro de 30 minutos.|set_timer|30
        Quiero escuchar Let It Be.|play_song|Let It Be
        Dile a Carmen "Nos vemos mañana".|send_message|Carmen|Nos vemos mañana
        ¿Quién escribió el Quijote?
        Traduce este texto al inglés.""",
    "Chinese": """北京的天气怎么样？|get_weather|北京
        设置一个20分钟的计时器。|set_timer|20
        播放歌曲《月亮代表我的心》。|play_song|月亮代表我的心
        给小明发消息：“我晚点到”。|send_message|小明|我晚点到
        上海现在下雨吗？|get_weather|上海
        5分钟后提醒我。|set_timer|5
        我想听《青花瓷》。|play_song|青花瓷
        告诉李华“明天见”。|send_message|李华|明天见
        谁写了《红楼梦》？
        帮我订一张去东京的机票。""",
}


def foreign(folder: Path) -> Iterator[Judged]:
    """Ten requests in each of four languages that training had none of, over four tools."""
    parameters = {tool["name"]: list(tool["parameters"]["properties"]) for tool in FOREIGN_TOOLS}
    for language, lines in FOREIGN.items():
        for number, line in enumerate(lines.splitlines(), 1):
            request, *wanted = line.strip().split("|")
            tool, *values = wanted or (None,)
            args = dict(zip(parameters[tool], values, strict=True)) if tool else {}
            calls = [{"tool": tool, "args": args}] if tool else []
            row = PlanRow(f"{language}-{number}", request, tuple(FOREIGN_TOOLS), tuple(calls))
            yield Judged(f"foreign {language}", row, _scored(row))


def _shown(row: PlanRow, pool: Sequence[Mapping[str, Any]], rng: random.Random, keep_order: bool = False) -> PlanRow:
    shown = {tool["name"]: tool for tool in row.tools}
    for tool in pool if keep_order else rng.sample(list(pool), min(len(pool), 20)):
        if len(shown) < SHOWN:
            shown.setdefault(tool["name"], tool)
    order = list(shown.values())
    rng.shuffle(order)
    return PlanRow(row.id, row.request, tuple(order), row.calls, source=row.source)


def write_plans(
    model: Any, tokenizer: Any, vocabulary: Any, rows: Sequence[PlanRow], refuse_above: float = 0.5, batch: int = 128
) -> list[Any]:
    """The writers of plans after greedy decoding under the grammar, many rows side by side (torch, any device)."""
    import torch

    from agent_forge.agents.planner.writer import PlanWriter

    device = next(model.parameters()).device
    prompts = [each.ids for each in tokenizer.encode_batch([row.prompt for row in rows], add_special_tokens=False)]
    order = sorted(range(len(rows)), key=lambda place: len(prompts[place]))
    writers: list[Any] = [None] * len(rows)
    for start in range(0, len(order), batch):
        places = order[start : start + batch]
        longest = max(len(prompts[place]) for place in places)
        ids = torch.zeros(len(places), longest, dtype=torch.long)
        mask = torch.zeros(len(places), longest, dtype=torch.long)
        for line, place in enumerate(places):
            ids[line, longest - len(prompts[place]) :] = torch.tensor(prompts[place])
            mask[line, longest - len(prompts[place]) :] = 1
            writers[place] = PlanWriter(vocabulary, rows[place].tools, rows[place].request, refuse_above)
        _write(model, ids.to(device), mask.to(device), [writers[place] for place in places])
    return writers


def _write(model: Any, ids: Any, mask: Any, writers: Sequence[Any], most: int = 320) -> None:
    import torch

    cache = None
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with torch.inference_mode():
        for _ in range(most):
            out = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            logits = out.logits[:, -1].float().cpu().numpy()
            tokens = [0 if writer.ended else writer.choose(logits[line]) or 0 for line, writer in enumerate(writers)]
            if all(writer.ended for writer in writers):
                return
            ids = torch.tensor(tokens, device=mask.device)[:, None]
            mask = torch.cat([mask, mask.new_ones(len(writers), 1)], 1)
            positions = positions[:, -1:] + 1


def keep_written(path: Path, rows: Sequence[Judged], writers: Sequence[Any]) -> None:
    """What was written for each row, with its figures, as JSON Lines."""
    with path.open("w") as file:
        for each, writer in zip(rows, writers, strict=True):
            line = {
                "kind": each.kind,
                "id": each.row.id,
                "calls": writer.calls,
                "none": writer.none_probability,
                "confidences": [round(confidence, 3) for confidence in writer.confidences],
                **each.judge(writer.calls),
            }
            file.write(json.dumps(line) + "\n")


def summary(rows: Sequence[Judged], writers: Sequence[Any]) -> dict[str, dict[str, float]]:
    """The means of all figures by kind of row."""
    sums: dict[str, dict[str, list[float]]] = {}
    for each, writer in zip(rows, writers, strict=True):
        figures = each.judge(writer.calls)
        figures["refused"] = float(not writer.calls)
        figures["missing"] = float(any(value is None for call in writer.calls for value in call["args"].values()))
        for name, value in figures.items():
            sums.setdefault(each.kind, {}).setdefault(name, []).append(value)
    return {
        kind: {name: round(sum(values) / len(values), 3) for name, values in figures.items()}
        | {"n": len(next(iter(figures.values())))}
        for kind, figures in sums.items()
    }
