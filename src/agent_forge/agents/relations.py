"""Relations that questions ask for, as data: how a question words them and which two hops a kinship word hides.

The rule planner writes each look-up as "<relation> of <entity>", and the rule-based answerer reads exactly that, so a
plan stays executable in every text format.
"""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_forge.agents.language import word_set

# A role leads from one thing to a person or thing that can be looked up in turn.
ROLES = word_set(
    """director co-director composer performer singer producer author writer screenwriter creator founder
    co-founder editor publisher owner manager architect designer developer presenter host star husband wife
    spouse father mother son daughter child sibling brother sister parent president coach captain successor
    predecessor king queen leader inventor mascot capital"""
)

# relation -> the words that ask for it when it is a noun ("What is the … of E?")
NOUNS = {
    "date of birth": ("date of birth", "birth date", "birthdate", "birthday", "year of birth"),
    "date of death": ("date of death", "death date", "year of death"),
    "place of birth": ("place of birth", "birthplace", "birth place", "place of birth"),
    "place of death": ("place of death", "death place"),
    "place of burial": ("place of burial", "burial place", "resting place"),
    "cause of death": ("cause of death", "reason for the death", "reason of death"),
    "nationality": ("nationality", "citizenship", "country of citizenship"),
    "country of origin": ("country of origin",),
    "release date": ("release date", "publication date", "date of release"),
    "spouse": ("spouse", "husband", "wife"),
    "father": ("father",),
    "mother": ("mother",),
    "child": ("child", "son", "daughter"),
    "sibling": ("sibling", "brother", "sister"),
    "occupation": ("occupation", "profession"),
    "award": ("award", "prize"),
    "employer": ("employer",),
    "alma mater": ("alma mater", "college", "university"),
}

# Two-hop words: 2Wiki's "compositional inference" questions. First hop from the entity, second from its result.
KINSHIP = {
    "paternal grandfather": ("father", "father"),
    "paternal grandmother": ("father", "mother"),
    "maternal grandfather": ("mother", "father"),
    "maternal grandmother": ("mother", "mother"),
    "grandfather": ("father", "father"),
    "grandmother": ("father", "mother"),
    "father-in-law": ("spouse", "father"),
    "mother-in-law": ("spouse", "mother"),
    "sibling-in-law": ("spouse", "sibling"),
    "brother-in-law": ("spouse", "sibling"),
    "sister-in-law": ("spouse", "sibling"),
    "child-in-law": ("child", "spouse"),
    "son-in-law": ("child", "spouse"),
    "daughter-in-law": ("child", "spouse"),
    "stepfather": ("mother", "spouse"),
    "stepmother": ("father", "spouse"),
    "grandchild": ("child", "child"),
    "grandson": ("child", "child"),
    "granddaughter": ("child", "child"),
    "uncle": ("father", "sibling"),
    "aunt": ("father", "sibling"),
}

_E = r"(?P<e>.+?)"
# Whole questions about one entity. The first match wins; "{r}" in a relation is the word the group `r` caught.
QUESTIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"^{pattern}\s*[?.]*$", re.IGNORECASE), relation)
    for pattern, relation in (
        (
            rf"(?:where|in (?:what|which) (?:city|town|country|place|state)) (?:was|is|were) {_E} born(?: (?:in|at))?",
            "place of birth",
        ),
        (rf"(?:what|which) (?:city|town|country|place) (?:was|is) {_E} born in", "place of birth"),
        (rf"(?:when|(?:on|in) (?:what|which) (?:date|day|year)) (?:was|is) {_E} born(?: on| in)?", "date of birth"),
        (rf"when (?:was|is) {_E}(?:'s|’s|') (?:birthday|date of birth)", "date of birth"),
        (rf"(?:where|in (?:what|which) (?:city|town|country|place)) did {_E} die", "place of death"),
        (rf"(?:when|(?:on|in) (?:what|which) (?:date|day|year)) did {_E} die", "date of death"),
        (rf"where (?:was|is) the (?P<r>place of (?:birth|death|burial)) of {_E}", "{r}"),
        (rf"where (?:was|is) {_E} buried", "place of burial"),
        (rf"(?:why|how|of what) did {_E} die(?: of)?", "cause of death"),
        (rf"what (?:was|is) the cause of {_E}(?:'s|’s|') death", "cause of death"),
        (
            rf"(?:where|(?:what|which|at which) (?:university|college|school)) did {_E} (?:study|graduate|get educated|go to college)(?: from| at)?",
            "alma mater",
        ),
        (rf"where does {_E} work(?: at| for)?", "employer"),
        (rf"what (?:nationality|citizenship) (?:is|was) {_E}", "nationality"),
        (rf"(?:which|what) country (?:is |was )?{_E} (?:is |was |comes? )?from", "nationality"),
        (rf"where (?:is|was|does|are) {_E} (?:come )?from", "nationality"),
        (
            rf"(?:what|which) (?:is the )?(?:award|prize)s? (?:that |did |which )?{_E} (?:won|win|receive[d]?|get|got|earn(?:ed)?)",
            "award",
        ),
        (rf"when (?:was|is) {_E} (?:released|published|premiered)", "release date"),
        (rf"when (?:was|is) {_E} (?:founded|established|formed|created|opened|built)", "date founded"),
        (rf"who (?:was |is )?(?:directed|the director of) {_E}", "director"),
        (rf"who (?:composed|wrote the music (?:for|of)) {_E}", "composer"),
        (rf"who (?:wrote) {_E}", "author"),
        (rf"who (?:founded) {_E}", "founder"),
        (rf"who (?:was|is) {_E} married to", "spouse"),
        (rf"who did {_E} marry", "spouse"),
    )
)

# What is compared, and how: heads of "…, A or B?" questions -> (relation, operation). "{n}" is the group `n`.
COMPARISONS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), relation, operation)
    for pattern, relation, operation in (
        (r"lived longer|longer life(?:span)?|longer lived", "lifespan", "largest"),
        (
            r"(?:born|birth).*(?:first|earlier|earliest|before)|older|oldest|earlier (?:born|birth)",
            "date of birth",
            "earliest",
        ),
        (r"(?:born|birth).*(?:later|last|latest|after|recently)|younger|youngest", "date of birth", "latest"),
        (r"die[ds]?.*(?:first|earlier|earliest|before)|passed away.*(?:first|earlier)", "date of death", "earliest"),
        (r"die[ds]?.*(?:later|last|latest|after|recently)|passed away.*(?:later|last)", "date of death", "latest"),
        (
            r"(?:came out|come out|released?|published|publication|aired|premiered|launched|debuted|shown|issued|release date)"
            r".*(?:first|earlier|earliest|before)|first (?:released|published|aired|issued)|(?:is|was) (?:the )?older (?:film|movie|album|song)",
            "release date",
            "earliest",
        ),
        (
            r"(?:came out|come out|released?|published|publication|aired|premiered|launched|debuted|shown|issued|release date)"
            r".*(?:later|last|latest|recently|after)|more recent(?:ly)?|newer|newest|most recent(?:ly)?",
            "release date",
            "latest",
        ),
        (
            r"(?:founded|established|formed|created|started|start(?:ed)? (?:their|its)|built|opened|constructed|completed|incorporated|"
            r"introduced|invented|began|begun).*(?:first|earlier|earliest|before)|"
            r"first (?:founded|established|formed|created|built|opened|constructed)",
            "date founded",
            "earliest",
        ),
        (
            r"(?:founded|established|formed|created|started|built|opened|constructed|completed|introduced|began).*"
            r"(?:later|last|latest|recently|after)",
            "date founded",
            "latest",
        ),
        (
            r"(?:has|have|had|with|are there|were there|is there|there|won|directed|wrote|written|contains?|include[ds]?|scored|made|did)"
            r"(?: the)? (?:more|most|greater|higher|highest|larger|largest)(?: (?:number|amount|percentage) of)? (?P<n>[\w -]+?)",
            "number of {n}",
            "largest",
        ),
        (
            r"(?:has|have|had|with|are there|were there|is there|there|won)(?: the)? (?:fewer|fewest|less|least|lower|lowest|smaller|smallest)"
            r"(?: (?:number|amount|percentage) of)? (?P<n>[\w -]+?)",
            "number of {n}",
            "smallest",
        ),
        (
            r"(?P<n>larger|largest|bigger|biggest|taller|tallest|higher|highest|longer|longest|greater|greatest|heavier|faster|deeper|wider|"
            r"more|most)",
            "{n}",
            "largest",
        ),
        (
            r"(?P<n>smaller|smallest|shorter|shortest|lower|lowest|lighter|slower|fewer|fewest|less|least|closer|closest)",
            "{n}",
            "smallest",
        ),
    )
)

# The measure that an adjective asks for.
MEASURES = {
    "size": "larger largest bigger biggest smaller smallest greater greatest",
    "height": "taller tallest higher highest lower lowest",
    "length": "longer longest shorter shortest",
    "weight": "heavier lighter",
    "speed": "faster slower",
    "depth": "deeper",
    "width": "wider",
    "distance": "closer closest",
    "number": "more most fewer fewest less least",
}
MEASURE_OF = {adjective: measure for measure, adjectives in MEASURES.items() for adjective in adjectives.split()}

# Shared attributes of "Do A and B have the same …?"
SHARED: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), relation)
    for pattern, relation in (
        (r"\bnationalit|citizenship", "nationality"),
        (r"\b(?:movie|film)s?\b.*\bcountry|originate|country of origin", "country of origin"),
        (r"\bborn\b.*\b(?:year|day|date)", "date of birth"),
        (r"\bborn\b", "place of birth"),
        (r"\bcountry", "country"),
        (r"\b(?:profession|occupation|job)", "occupation"),
    )
)


def canonical(noun: str) -> str:
    """The table's name for a relation noun ("husband" -> "spouse"), or the noun itself.

    >>> canonical("birthplace"), canonical("capital")
    ('place of birth', 'capital')
    """
    noun = noun.lower().strip()
    return next((name for name, forms in NOUNS.items() if noun in forms), noun)


@dataclass(frozen=True, slots=True)
class LookUp:
    """ "<relation> of <entity>" """

    relation: str
    entity: str


@dataclass(frozen=True, slots=True)
class Predicate:
    """ "if <statement>": a yes or no about one thing."""

    statement: str


@dataclass(frozen=True, slots=True)
class Combine:
    """An operation on earlier results alone: earliest, latest, largest, smallest, true, same, both, common, difference,
    number or sum. `operands` are references or, in a goal whose references have been resolved, values; none where the
    values cannot be told from the words around them. `labels` are what each stands for, where the goal says so."""

    operation: str
    operands: tuple[str, ...]
    labels: tuple[str, ...] = ()


Goal = LookUp | Predicate | Combine

_REFERENCE = re.compile(r"\{[\w.\[\]]+\}")
_CHOICE = re.compile(r"^which is (?P<op>earliest|latest|largest|smallest|true) of (?P<rest>.+)$", re.IGNORECASE)
_LABELLED = re.compile(r"(?P<value>.+?) \((?P<label>[^()]*(?:\([^()]*\)[^()]*)*)\)(?:, |$)")
_OPERATIONS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), operation)
    for pattern, operation in (
        (r"^if .*\bare the same$", "same"),
        (r"^if both .*\bare true$", "both"),
        (r"^what .* have in common$", "common"),
        (r"^(?:the )?difference of ", "difference"),
        (r"^(?:the )?number of (?:\{[^}]*\}|\[.*\])$", "number"),
        (r"^(?:the )?sum of (?:\{[^}]*\}|\[.*\])$", "sum"),
    )
)
_LOOK_UP = re.compile(r"^(?:the )?(?P<r>[\w' -]+?) of (?P<e>.+)$", re.IGNORECASE)
_TWO_WORD = re.compile(
    rf"^(?:the )?(?P<r>{'|'.join(sorted((re.escape(f) for forms in NOUNS.values() for f in forms), key=len, reverse=True))}|"
    r"number of [\w -]+?|date founded) of (?P<e>.+)$",
    re.IGNORECASE,
)


# Longer texts are no questions and no goals of ours, and the patterns, tried at every place, would take minutes on them.
LONGEST_GOAL = 2000


def parse_goal(goal: str) -> Goal | None:
    """Reads a goal in the controlled language of the rule planner; None for any other.

    >>> parse_goal("place of birth of {s1}")
    LookUp(relation='place of birth', entity='{s1}')
    >>> parse_goal("which is earliest of {s1} (Ann), May 5, 1940 (Bob)")
    Combine(operation='earliest', operands=('{s1}', 'May 5, 1940'), labels=('Ann', 'Bob'))
    """
    if len(goal) > LONGEST_GOAL:
        return None
    goal = goal.strip().rstrip(".?")
    choice = _CHOICE.match(goal)
    if choice:
        found = _LABELLED.findall(choice["rest"])
        return Combine(choice["op"].lower(), tuple(v for v, _ in found), tuple(label for _, label in found))
    for pattern, operation in _OPERATIONS:
        if pattern.match(goal):
            operands = (
                _REFERENCE.findall(goal) if operation != "difference" else re.split(r" and ", goal.split(" of ", 1)[1])
            )
            return Combine(operation, tuple(operands))
    if re.match(r"^if\b", goal, re.IGNORECASE):
        return Predicate(goal[2:].strip())
    found_look_up = _TWO_WORD.match(goal) or _LOOK_UP.match(goal)
    return LookUp(canonical(found_look_up["r"]), found_look_up["e"]) if found_look_up else None
