"""What a model, or anything it was made from, was trained on, by their cards: such text cannot judge it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent_forge.errors import HandoffError
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint
from agent_forge.forge.corpus import Source
from agent_forge.forge.registry import folder_of

HELD_OUT = 0.05  # share of the documents held out for judging, unless a model was trained with less


def judging_share(model: Checkpoint, sources: Mapping[str, Source], share: float | None) -> float:
    """The share of the documents to judge on: the one that is set, or what every ancestor held out. Raises HandoffError
    if the model has seen some of those documents."""
    usual = (card.config.get("held_out") for card in (model.card, *_ancestors(model)))
    least = min([HELD_OUT, *(float(one) for one in usual if isinstance(one, (int, float)) and one > 0)])
    for name, source in sources.items():
        refuse_seen_documents(model, name, source.path, source.held_out or share or least)
    return share or least


def refuse_seen_documents(model: Checkpoint, name: str, path: str, share: float) -> None:
    """Raises HandoffError if the held-out documents include some that the model, or an ancestor, was trained on.

    Equal shares of a source hold out the same documents, a larger share also holds out some that were trained on. The
    cards say which sources were read, by name and by path.
    """
    for card in (model.card, *_ancestors(model)):
        usual = card.config.get("held_out")
        if usual is None:
            continue  # the phase does not learn from text: what the model has read is unknown
        for other, source in card.config.get("sources", {name: {"path": path}}).items():
            before = source.get("held_out") or usual
            same = other == name or folder_of(source["path"]) == folder_of(path)
            if same and before < share:
                raise HandoffError(
                    f"held_out is {share}, but {card.phase!r} was trained with {before}: it has seen documents that "
                    "would be judged on",
                    where=path,
                    fix=f"Set held_out to {before} or less",
                )


def _ancestors(model: Checkpoint) -> Iterator[Card]:
    """The cards of everything the model was made from, as far as they still exist."""
    ahead, seen = list(model.card.inputs), set[str]()
    while ahead:
        digest = ahead.pop()
        if digest in seen:
            continue
        seen.add(digest)
        for file in model.path.parent.glob(f"*-{digest[:12]}/{CARD}"):
            card = Card.from_json(file.read_text(encoding="utf-8"), str(file))
            ahead.extend(card.inputs)
            yield card
