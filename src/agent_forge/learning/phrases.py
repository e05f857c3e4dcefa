"""From a call to the words that ask for it: many moods, orders and prepositions, so that no template is learnt."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_forge.learning.values import WORDS, Value, listing, name_words, singular, words_of

_PHRASES: dict[str, Any] = WORDS["phrases"]
SYNONYMS = _PHRASES["synonyms"]
ASKING = frozenset(_PHRASES["asking"])
OPENERS = _PHRASES["openers"]
CLOSERS = _PHRASES["closers"]
AFTERWARDS = _PHRASES["afterwards"]
COUNTS = ("", "one", "two", "three", "four")
JOINTS = _PHRASES["joints"]
ORDERED = _PHRASES["ordered"]
AGREED = _PHRASES["agreed"]
BY_KIND = _PHRASES["by_kind"]
BY_WORD = _PHRASES["by_word"] | {word: _PHRASES["by_word"][like] for word, like in _PHRASES["also_words"].items()}
ENDS = _PHRASES["ends"]
_ENDS_OF = _PHRASES["ends_of"]
_VERBS = frozenset(_PHRASES["verbs"])
THIRD = re.compile(r"^(\w+?)(ies|ches|shes|sses|zes|xes|s)$")
UNITS = ("unit", "units")
MEASURED = ("integer", "number")
_GENERIC = (
    r"\b(?:(?:an?|the|one|some|any) )?(?:(?:given|specific|specified|certain|particular|desired|user's|single) )?{}\b"
)


class Phrasing:
    """Says calls in words. A quarter of all forms can be kept apart: with `held_out` True only these are used, with
    False only the others, so that a model is judged on wordings that it did not learn from."""

    def __init__(self, rng: random.Random, held_out: bool | None = None) -> None:
        self.rng, self.held_out = rng, held_out

    def pick(self, forms: Sequence[Any]) -> Any:
        """One of the forms."""
        if self.held_out is not None:
            some = list(dict.fromkeys(forms))  # some stand there twice, to be drawn more often
            forms = [each for place, each in enumerate(some) if (place % 4 == 1) == self.held_out] or forms
        return self.rng.choice(forms)

    def intent(self, function: Mapping[str, Any]) -> str:
        """What a tool does, in the imperative: from its description, or from its name."""
        description = " ".join((function.get("description") or "").split())
        first = re.split(r"[.;(]|, (?:given|based|using|including)", description, maxsplit=1)[0].strip()
        words = first.split(" ")
        name = " ".join(name_words(function["name"].rpartition(".")[2]))
        if not 2 <= len(words) <= 16 or self.rng.random() < 0.2:
            text = name
        else:
            verb = words[0].lower()
            match = THIRD.match(verb)
            if match and match[1] + {"ies": "y", "s": ""}.get(match[2], match[2][:-2]) in _VERBS | set(SYNONYMS):
                verb = match[1] + {"ies": "y", "s": ""}.get(match[2], match[2][:-2])
            elif verb in ("this", "allows", "allow", "a", "an", "the", "function", "api", "tool"):
                verb = ""
            text = " ".join([verb, *words[1:]]).strip() if verb else name
            text = (
                re.split(r" (?:that|which|based on|by|using|according to|within) ", text)[0]
                if self.rng.random() < 0.5
                else text
            )
        return self.reworded(text)

    def reworded(self, text: str) -> str:
        return " ".join(
            self.pick(SYNONYMS[word]) if word in SYNONYMS and self.rng.random() < 0.35 else word
            for word in text.split(" ")
        )

    def pointing(self, field: str) -> str:
        """Words for an argument that is an earlier result."""
        label = words_of(field)
        return self.pick(
            (
                f"using that {label}",
                f"with the {label} you get",
                f"for that {label}",
                f"with its {label}",
                "for it",
                "based on that",
                f"using the {label} from the first step",
                f"with the resulting {label}",
                "with the result",
                f"for the {label} found",
                "",
            )
        )

    def correction(self, name: str, value: Value) -> str:
        said, label = self.quoted(value), words_of(name)
        return self.pick(
            (
                f"No, make that {said}.",
                f"Sorry, I meant {said}.",
                f"Actually, change the {label} to {said}.",
                f"Wait, {said} instead.",
                f"Please use {said} as the {label} instead.",
                f"No, {label} {said}.",
            )
        )

    def quoted(self, value: Value) -> str:
        if not value.quoted:
            return value.said
        roll = self.rng.random()
        if value.kind in ("integer", "number", "year", "array", "boolean", "date", "time", "object") or roll < 0.6:
            if value.kind == "message" and roll < 0.5 and value.said == value.value:
                return f"'{value.said}'" if "'" not in value.said else f'"{value.said}"'
            return value.said.lower() if roll < 0.04 and value.kind in ("city", "person", "cuisine") else value.said
        mark = self.pick("'\"") if "'" not in value.said else '"'
        return f"{mark}{value.said}{mark}"

    def slot(self, name: str, value: Value) -> str:
        """The words for one argument, with a preposition that fits it."""
        words = name_words(name)
        label = words_of(name)
        if value.kind == "boolean":
            thing = re.sub(r"^(?:is|has|include|includes|use|with|show|get|need|requires?) ", "", label)
            yes = (f"including {thing}", f"with {thing}", f"and {label}", f"with {thing} enabled", f"{thing} please")
            no = (f"without {thing}", f"but no {thing}", f"excluding {thing}", f"with {thing} off", f"{label} false")
            return self.pick(yes if value.value else no)
        forms: Sequence[str] = AGREED
        ends = next((_ENDS_OF[word] for word in words if word in _ENDS_OF), None)
        if (
            ends
            and value.kind in ("city", "country", "date", "time", "language", "currency", "address", "region")
            and self.rng.random() < 0.8
        ):
            forms = ENDS[ends]
        elif (worded := [BY_WORD[word] for word in words if word in BY_WORD]) and self.rng.random() < 0.6:
            forms = worded[-1]
        elif value.kind in ("integer", "number"):
            noun = words[-1]
            forms = (
                *AGREED[:9],
                f"{{v}} {label}",
                f"of {{v}} {noun}",
                f"{label} = {{v}}",
                f"{label} of {{v}}",
                f"for {{v}} {noun}",
            )
        elif value.kind in BY_KIND and self.rng.random() < 0.7:
            forms = BY_KIND[value.kind]
        return self.pick(forms).format(p=label, v=self.quoted(value))

    def listed(self, values: Sequence[Value]) -> Value:
        """Values side by side, said as one."""
        words = [self.quoted(each) for each in values]
        ends = {word.partition(" ")[2] for word in words}
        if values[0].kind in MEASURED and len(ends) == 1 and "percent" not in ends and self.rng.random() < 0.7:
            # 10, 20 and 30 years
            words = [*(word.partition(" ")[0] for word in words[:-1]), words[-1]]
        said = ", ".join(words[:-1]) + self.pick((" and ", " and ", ", and ", " as well as ")) + words[-1]
        kind = "plural" if values[0].kind in MEASURED else values[0].kind
        return Value(None, said, kind, quoted=False)

    def pairs(self, name: str, pairs: Sequence[tuple[Value, Value]]) -> str:
        """Values of two parameters, the second one of this name: `Oslo in 1999, Rome in 2003 and Bonn in 2010`."""
        label, kind = words_of(name), pairs[0][1].kind
        form = self.pick([each for each in BY_KIND.get(kind, ()) if "{p}" not in each] or ("with {v} {p}", "and {v}"))
        opening = self.pick(("for ", "for ", "", "of "))
        said = [f"{self.quoted(a)} {form.format(p=label, v=self.quoted(b))}" for a, b in pairs]
        joint = self.pick((" and ", ", and ", ", and also ", ", as well as "))
        return opening + (", ".join(said[:-1]) + joint + said[-1] if len(said) > 2 else f" and {opening}".join(said))

    def told(
        self, function: Mapping[str, Any], shared: Mapping[str, Value], cases: Sequence[Mapping[str, Value]]
    ) -> str:
        """A story: what each case has, in a sentence or more, and what is asked, before it or after."""
        names = [singular(word) for word in name_words(function["name"])[1:]]
        nouns = [name for name in names if len(name) > 3 and name[-1] not in "sy"]
        thing = self.pick((*nouns, *nouns, "case", "one", "item", "example", "scenario", "object"))
        form = self.pick(("the {} {}", "{} of {}", "a {} of {}", "{} {}", "{} = {}", "{}: {}"))
        said = [self._facts(each, form) for each in cases]
        count = self.pick((COUNTS[len(cases)], COUNTS[len(cases)], str(len(cases))))
        many = f"{count} {self.pick(('', '', 'different ', 'separate '))}{thing}s"
        heads = [f"the {number} {thing}" for number in ("first", "second", "third", "fourth")[: len(cases)]]
        if self.rng.random() < 0.3:
            heads = [self.pick(("one", "one of them")), *["another"] * (len(cases) - 2), "the other"]
        if len(cases) == 1:
            told = " ".join(f"{each[0].upper()}{each[1:]}." for each in self._alone(cases[0]))
        elif self.rng.random() < 0.5:
            verb = self.pick(("has", "has", "is given with", "comes with", "uses"))
            told = " ".join(f"{head.capitalize()} {verb} {each}." for head, each in zip(heads, said, strict=True))
        else:
            opening = self.pick(("there are {}: ", "I have {}, ", "consider {}, ", "we have {}: ")).format(many)
            told = self.sentence(opening + listing([f"{h} with {s}" for h, s in zip(heads, said, strict=True)]))
        asked = self.clause(function, shared)
        end = self.pick(("", "for each of them", f"for {many}", "for each", f"for each {thing}")) if cases[1:] else ""
        question = self.sentence(f"{asked} {end}".rstrip())
        ended = [each if each[-1] in ".?!" else f"{each}." for each in (question, told)]
        return " ".join(ended if self.rng.random() < 0.5 else ended[::-1])

    def turns(
        self,
        function: Mapping[str, Any],
        drawn: Mapping[str, Value],
        before: Mapping[str, Value],
        fields: Sequence[str] = (),
    ) -> list[str]:
        """One call as what a person says turn by turn: what is wanted, then one thing after the other, with answers to
        questions that are not heard, and at the end minds changed. `before` are values that are taken back, `fields`
        what may be asked about without a call."""
        said = {**drawn, **before}
        names = list(drawn)
        self.rng.shuffle(names)
        first = names[: self.rng.choice((0, 0, 1, 1, 2))]
        turns = [self.sentence(self.clause(function, {name: said[name] for name in first}))]
        for name in names:
            if name not in first:
                turns.append(self.turn(name, said[name], drawn))
            if self.rng.random() < 0.2:
                turns.append(self.pick(_PHRASES["replies"]))
        if fields and self.rng.random() < 0.2:
            turns.append(self.pick(_PHRASES["asides"]).format(f=words_of(self.rng.choice(fields))))
        turns += [self.change(name, drawn[name], drawn) for name in before]
        ended = [turn if turn[-1] in ".?!:" else f"{turn}." for turn in turns]
        return [turn[0].upper() + turn[1:] for turn in ended]

    def turn(self, name: str, value: Value, drawn: Mapping[str, Value]) -> str:
        """One argument as a sentence of its own."""
        if value.kind == "boolean":
            return self.pick(_PHRASES["turns"][:9]).format(s=self.slot(name, value))
        if value.kind in ("array", "object", "message") or self.rng.random() < 0.25:
            return self.pick(_PHRASES["labelled_turns"]).format(p=words_of(name), v=self.quoted(value))
        if self._alone_of_its_kind(value, drawn) and self.rng.random() < 0.4:
            return self.pick(_PHRASES["bare_turns"]).format(v=self.quoted(value))
        slot = self.slot(name, value)
        if slot.startswith(("(", "and ")):  # made to follow other words
            return slot.removeprefix("and ").strip("()")
        return self.pick(_PHRASES["turns"]).format(s=slot)

    def change(self, name: str, value: Value, drawn: Mapping[str, Value]) -> str:
        """An argument after all another one than was said."""
        if self._alone_of_its_kind(value, drawn) and self.rng.random() < 0.7:
            return self.pick(_PHRASES["changes"]).format(v=self.quoted(value))
        return self.pick(_PHRASES["labelled_changes"]).format(p=words_of(name), v=self.quoted(value))

    @staticmethod
    def _alone_of_its_kind(value: Value, drawn: Mapping[str, Value]) -> bool:
        """Whether a value without a word about its parameter can be meant for no other."""
        kinds = [each.kind for each in drawn.values()]
        plain = value.kind in ("text", "name") or value.kind in MEASURED
        return kinds.count(value.kind) == 1 and (not plain or len(kinds) == 1)

    def goes_on(self, turn: str) -> str:
        """The first turn of a further call."""
        form = self.pick(_PHRASES["goings_on"])
        begins = form.startswith("{}") or ". {}" in form or turn[:2] in ("I ", "I'")
        return form.format(turn if begins else turn[0].lower() + turn[1:])

    def _facts(self, drawn: Mapping[str, Value], form: str) -> str:
        """What a case has: `a base of 10 meters and a height of 5 meters`."""
        given = self.with_region(self.with_unit(drawn))
        facts = [
            self.slot(name, value) if value.kind == "boolean" else form.format(words_of(name), self.quoted(value))
            for name, value in given.items()
        ]
        return listing(facts)

    def _alone(self, drawn: Mapping[str, Value]) -> list[str]:
        """What is given, each in a sentence."""
        forms = ("the {} is {}", "we have a {} of {}", "my {} is {}", "there is a {} of {}")
        given = self.with_region(self.with_unit(drawn))
        plain = {name: value for name, value in given.items() if value.kind != "boolean"}
        told = [self.pick(forms).format(words_of(name), self.quoted(value)) for name, value in plain.items()]
        return told + [f"I want it {self.slot(name, given[name])}" for name in given if name not in plain]

    def with_unit(self, drawn: Mapping[str, Value]) -> Mapping[str, Value]:
        """Now and then a number and its unit, which is a parameter of its own, said as one: `5 meters`."""
        units = [name for name, value in drawn.items() if name_words(name)[-1] in UNITS and value.kind not in MEASURED]
        bare = [name for name, value in drawn.items() if value.kind in MEASURED and value.said[-1:].isdigit()]
        if not units or not bare or self.rng.random() < 0.3:
            return drawn
        return _as_one(drawn, self.pick(bare), units[0], " ")

    def with_region(self, drawn: Mapping[str, Value]) -> Mapping[str, Value]:
        """A city and its state or country said as one: `Portland, Oregon`."""
        cities = [name for name, value in drawn.items() if value.kind == "city" and "," not in value.said]
        wider = [name for name, value in drawn.items() if value.kind in ("region", "country")]
        if len(cities) != 1 or len(wider) != 1 or self.rng.random() < 0.3:
            return drawn
        return _as_one(drawn, cities[0], wider[0], ", ")

    def same(self, name: str) -> str:
        """Words for a value that was said before, or none at all."""
        label = words_of(name)
        return self.pick((f"for the same {label}", f"with the same {label}", "", "", f"for that {label}", "as well"))

    def clause(self, function: Mapping[str, Any], drawn: Mapping[str, Value], extra: Sequence[str] = ()) -> str:
        """One call as a clause without end mark. `extra` are words for arguments that come from elsewhere."""
        intent = self.intent(function)
        drawn = self.with_region(self.with_unit(drawn))
        rest = dict(drawn)
        for name, value in drawn.items():
            noun = name_words(name)[-1]
            pattern = re.compile(_GENERIC.format(re.escape(singular(noun))) + "(?! (?:of|id|name|type))", re.IGNORECASE)
            if value.kind not in ("boolean", "object", "message") and len(noun) > 2 and self.rng.random() < 0.6:
                said = self.quoted(value).replace("\\", r"\\")
                changed, count = pattern.subn(said, intent, count=1)
                if count:
                    intent = changed
                    del rest[name]
        slots = [self.slot(name, value) for name, value in rest.items()] + [each for each in extra if each]
        self.rng.shuffle(slots)
        if len(slots) > 2 and self.rng.random() < 0.5:
            tail = ", ".join(slots[:-1]) + self.pick((" and ", ", ", ", and ")) + slots[-1]
        else:
            tail = self.pick((" ", " ", ", ", " and ")).join(slots)
        return self.mood(intent, tail, {} if any(extra) else rest)

    def mood(self, intent: str, tail: str, rest: Mapping[str, Value]) -> str:
        verb, _, thing = intent.partition(" ")
        thing = re.sub(r"^(?:me|up) ", "", thing)
        roll = self.rng.random()
        told = [f"{words_of(name)} is {self.quoted(value)}" for name, value in rest.items() if value.kind != "boolean"]
        if told and len(told) == len(rest) and roll < 0.08:
            return f"{', '.join(f'the {each}' for each in told)}: {intent}"
        end = f" {tail}" if tail else ""
        if verb in ASKING and thing and roll < 0.5:
            thing = thing if re.match(r"(?:the|a|an|all|any|some|information|details)\b", thing) else f"the {thing}"
            form = self.pick(
                (
                    "what is {}",
                    "what's {}",
                    "what are {}",
                    "show me {}",
                    "tell me {}",
                    "I'd like to know {}",
                    "I need {}",
                    "I want {}",
                    "give me {}",
                    "do you know {}",
                    "find {}",
                    "I'm interested in {}",
                    "{}",
                )
            )
            return form.format(f"{thing}{end}")
        form = self.pick(
            (
                "{}",
                "{}",
                "{}",
                "please {}",
                "can you {}",
                "could you please {}",
                "I want to {}",
                "I need to {}",
                "help me {}",
                "I'd like to {}",
                "would you {}",
                "I would like you to {}",
                "let's {}",
                "is it possible to {}",
            )
        )
        return form.format(f"{intent}{end}")

    def sentence(self, clause: str) -> str:
        """A clause as a sentence, a little careless now and then."""
        asks = re.match(r"(?:what|can|could|would|do|is|how)\b", clause, re.IGNORECASE)
        mark = "?" if asks else "."
        roll = self.rng.random()
        if roll < 0.08:
            return clause + ("" if roll < 0.04 else mark)
        return clause[0].upper() + clause[1:] + mark

    def joined(self, clauses: Sequence[str]) -> str:
        """Several clauses as one request."""
        ordered = len(clauses) > 1 and self.rng.random() < 0.25
        sentences = []
        for number, clause in enumerate(clauses):
            if ordered:
                form = ORDERED[min(number, 2) if number < len(clauses) - 1 else len(ORDERED) - 1]
            else:
                form = self.pick(JOINTS) if number and self.rng.random() < 0.8 else "{}"
            sentences.append(self.sentence(form.format(clause)))
        if len(clauses) == 2 and not ordered and self.rng.random() < 0.25:
            return self.sentence(
                f"{clauses[0]} {self.pick(('and', 'and then', 'and also', 'and after that'))} {clauses[1]}"
            )
        ended = [each if each[-1] in ".?!" else f"{each}." for each in sentences[:-1]]  # "twenty Third" is a number
        return " ".join([*ended, sentences[-1]])

    def dressed(self, request: str, calls: Sequence[Mapping[str, Any]]) -> str:
        """A request with the talk around it, none of which asks for a call."""
        if self.rng.random() < 0.25:
            request = f"{self.pick(OPENERS)} {request}"
        if len(calls) > 1 and self.rng.random() < 0.15:
            request = f"{request} {self.pick(AFTERWARDS)}"
        if len({call["tool"] for call in calls}) == 1 and self.rng.random() < 0.05:
            name = self.pick(("the '{}' function", "the function {}", "{}", "the {} tool")).format(calls[0]["tool"])
            return self.pick((f"{request} Use {name}.", f"Using {name}: {request}", f"{request} Please use {name}."))
        if self.rng.random() < 0.12:
            request = f"{request} {self.pick(CLOSERS)}".strip()
        return request


def _as_one(drawn: Mapping[str, Value], first: str, second: str, between: str) -> dict[str, Value]:
    """Two values in the words of the first."""
    both = replace(drawn[first], said=f"{drawn[first].said}{between}{drawn[second].said}")
    return {name: both if name == first else value for name, value in drawn.items() if name != second}
