"""The grammar of the `<plan>` line format, as an automaton over characters.

    plan  := line{1,most} "</plan>"          after the "<plan>\\n" that the prompt ends with
    line  := "Task " n ":" [tool] text " | Dependencies: " deps "\\n"
    tool  := " " one of the tools' names ":"  only where tools are given
    text  := " " word (" " word)*            without line breaks and without | < > { } and :
    deps  := "none" | "Task " i (", Task " j)*    with i < j < n, so that no cycle can be written

A state is a tuple; `step(state, char)` is the next one or None. A choice between fixed strings is a state that holds
what has been written of it, so that a vocabulary can be walked against it character by character.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

State = tuple[str, int, int, str]  # kind, number of the task, last dependency, written part of a choice
END: State = ("end", 0, 0, "")
SEPARATOR = "| Dependencies: "
_FORBIDDEN = frozenset("\n\r\t|<>{}:\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")


@dataclass(frozen=True, slots=True)
class PlanGrammar:
    """The minimum and maximum number of tasks, and the tools that a task must begin with (none: free text)."""

    least: int = 1
    most: int = 10
    tools: tuple[str, ...] = ()

    @property
    def start(self) -> State:
        return ("next", 0, 0, "")

    def step(self, state: State, char: str) -> State | None:
        kind, task, last, written = state
        if kind == "text":
            return self._text(state, char)
        if kind == "end":
            return None
        return self._choose(state, self._options(kind, task, last), written + char)

    def run(self, state: State, text: str) -> State | None:
        """The state after a text; None if the grammar does not allow it."""
        for char in text:
            following = self.step(state, char)
            if following is None:
                return None
            state = following
        return state

    def closing(self, state: State) -> bool:
        """Whether the plan may end in this state: between tasks, once there are enough."""
        return state[0] == "next" and state[1] >= self.least and not state[3]

    def _text(self, state: State, char: str) -> State | None:
        """Inside a description; `written` is "" before its first space, " " after a space, "w" inside a word."""
        _, task, last, written = state
        if char == " ":
            return ("text", task, last, " ") if written != " " else None
        if not written or (char != "|" and (char in _FORBIDDEN or not char.isprintable())):
            return None
        if char == "|":
            return ("separator", task, 0, "|") if written == " " and last else None
        return ("text", task, 1, "w") if last or char.isalnum() else None

    def _choose(self, state: State, options: dict[str, State], written: str) -> State | None:
        if written in options:
            return options[written]
        possible = any(option.startswith(written) for option in options)
        return (state[0], state[1], state[2], written) if possible else None

    def _options(self, kind: str, task: int, last: int) -> dict[str, State]:
        if kind == "next":
            return self._lines(task)
        if kind == "tool":
            return {f" {name}:": ("text", task, 0, "") for name in self.tools}
        if kind == "separator":
            return {SEPARATOR: ("dependencies", task, 0, "")}
        return self._dependencies(task, last)

    def _lines(self, done: int) -> dict[str, State]:
        after: State = ("tool" if self.tools else "text", done + 1, 0, "")
        more = {f"Task {done + 1}:": after} if done < self.most else {}
        return {**more, **({"</plan>": END} if done >= self.least else {})}

    def _dependencies(self, task: int, last: int) -> dict[str, State]:
        ended: State = ("next", task, 0, "")
        options: dict[str, State] = {} if last else {"none\n": ended}
        for earlier in range(last + 1, task):
            options[f"Task {earlier}\n"] = ended
            if earlier + 1 < task:
                options[f"Task {earlier}, "] = ("dependencies", task, earlier, "")
        return options


@dataclass(slots=True)
class Trie:
    """The vocabulary as a tree of characters, to find the tokens of a state without trying them all."""

    children: dict[str, Trie]
    tokens: list[int]

    @classmethod
    def of(cls, vocabulary: dict[int, str]) -> Trie:
        root = cls({}, [])
        for token, text in vocabulary.items():
            node = root
            for char in text:
                node = node.children.setdefault(char, cls({}, []))
            if text:
                node.tokens.append(token)
        return root

    def allowed(self, grammar: PlanGrammar, state: State) -> Iterator[tuple[int, State]]:
        """Each token allowed in a state, with the state that it leads to."""
        waiting: list[tuple[Trie, State]] = [(self, state)]
        while waiting:
            node, at = waiting.pop()
            for char, child in node.children.items():
                following = grammar.step(at, char)
                if following is not None:
                    for token in child.tokens:
                        yield token, following
                    waiting.append((child, following))
