"""Tables of the relations that questions ask for: how they are worded, and which two hops a kinship word hides."""

# ruff: noqa: E501  (a pattern reads best on one line)

from __future__ import annotations

import re

from agent_forge.tasks.words import word_set

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
