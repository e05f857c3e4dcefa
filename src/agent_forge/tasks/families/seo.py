"""SEO: a page in HTML that keeps the rules of a brief: title, description, headings, alt texts, and no stuffing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from typing import Any

from agent_forge.tasks.answers import read_answer
from agent_forge.tasks.constraints import judge, occurrences, outside, prose_fault, words
from agent_forge.tasks.family import Draft, Verdict, task_family

_KINDS = ("wool", "oak", "leather", "linen", "copper", "bamboo", "ceramic", "folding", "garden", "travel")
_THINGS = ("blanket", "table", "bag", "shirt", "kettle", "chair", "teapot", "bicycle", "lantern", "mug")
_SITES = ("hearth-and-home", "northmill", "villageshop", "goodthings")
_TOPICS = ("Materials", "Care", "Sizes", "Delivery", "Prices", "Warranty")
_VIEWS = ("front", "detail", "in-use")
_FENCE = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_MAY_STAY_OPEN = {"html", "head", "body", "p", "li", "dt", "dd", "tr", "td", "th", "thead", "tbody", "option"}
_ENDS_PARAGRAPH = {
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "div", "section", "article", "ul", "ol", "table", "figure", "header",
    "footer", "main", "nav",
}  # fmt: skip
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0(?![.\d])")


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())


class _Page(HTMLParser):
    """The elements of a page with the text in them, and what is wrong with its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[_Element] = []
        self.fault: str | None = None
        self.hidden = False
        self.said = ""  # all text, that of descriptions and images included
        self._open: list[_Element] = []
        try:
            self.feed(html)
            self.close()
        except AssertionError as error:  # how html.parser refuses a marked section such as <![x[
            self.fault = str(error)
        for element in self._open:
            if element.tag not in _MAY_STAY_OPEN:
                self.fault = self.fault or f"<{element.tag}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _ENDS_PARAGRAPH and self._open and self._open[-1].tag == "p":
            self._open.pop()
        element = _Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        self.said += f" {element.attributes.get('alt', '')} {element.attributes.get('content', '')}"
        style = element.attributes.get("style", "")
        self.hidden = self.hidden or "hidden" in element.attributes or bool(_HIDDEN.search(style))
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1].tag != tag and self._open[-1].tag in _MAY_STAY_OPEN:
            self._open.pop()
        if self._open and self._open[-1].tag == tag:
            self._open.pop()
        elif tag not in _VOID:
            self.fault = self.fault or f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1].tag in ("script", "style"):
            self.hidden = self.hidden or bool(_HIDDEN.search(data))
            return
        self.said += f" {data}"
        for element in self._open:
            element.parts.append(data)

    def all(self, tag: str) -> list[_Element]:
        return [element for element in self.elements if element.tag == tag]

    @property
    def descriptions(self) -> list[str]:
        metas = [each.attributes for each in self.all("meta")]
        return [meta.get("content", "") for meta in metas if meta.get("name", "").lower() == "description"]


def check(answer: str, expected: Mapping[str, Any]) -> Verdict:
    """Parses the page and checks it rule by rule; what is hidden or stuffed halves the score."""
    if answer.lstrip().startswith('"'):  # the page as a JSON string
        answer = read_answer(answer, {"type": "string"})[0] or answer
    fenced = _FENCE.search(answer)
    page = _Page(fenced[1] if fenced else answer)
    if not page.elements:
        return Verdict(0.0, "the answer is not HTML", readable=False)
    keyword = expected["keyword"]
    faults = {
        "title": _one_fault([each.text for each in page.all("title")], keyword, expected["title"]),
        "h1": _one_fault([each.text for each in page.all("h1")], keyword, (1, 80)),
        "tags": page.fault,
    }
    faults |= dict(_other_faults(page, expected))
    times = occurrences(keyword, page.said)
    stuffed = f"{keyword!r} {times} times, not at most {expected['most']}" if times > expected["most"] else None
    return judge(faults, {"hidden": "something is hidden" if page.hidden else None, "stuffing": stuffed})


def _one_fault(texts: Sequence[str], keyword: str, bounds: Sequence[int]) -> str | None:
    if len(texts) != 1:
        return f"{len(texts)} instead of one"
    times = occurrences(keyword, texts[0])
    return outside("characters", len(texts[0]), *bounds) or (f"{keyword!r} {times} times" if times != 1 else None)


def _other_faults(page: _Page, expected: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """The rules that only harder briefs have."""
    keyword = expected["keyword"]
    if expected["description"]:
        texts = page.descriptions
        yield "description", _one_fault(texts, keyword, expected["description"]) or prose_fault(texts[0])
    if expected["words"]:
        body = " ".join(element.text for element in page.all("p"))
        yield "text", outside("words", len(words(body)), *expected["words"]) or prose_fault(body)
        yield "keyword", outside(f"times {keyword!r} in the text", occurrences(keyword, body), *expected["mentions"])
    if expected["topics"]:
        yield "headings", _headings_fault(page, expected["topics"])
    if expected["images"]:
        yield "images", _images_fault(page, expected["images"])
    if expected["canonical"]:
        links = [each.attributes for each in page.all("link") if each.attributes.get("rel", "").lower() == "canonical"]
        urls = [link.get("href") for link in links]
        yield "canonical", None if urls == [expected["canonical"]] else f"{urls} instead of {expected['canonical']}"
    if expected["lang"]:
        langs = [each.attributes.get("lang", "").lower() for each in page.all("html")]
        right = len(langs) == 1 and langs[0].split("-")[0] == expected["lang"]
        yield "lang", None if right else f"the html element has {langs}"


def _headings_fault(page: _Page, topics: Sequence[str]) -> str | None:
    """The topics must be the h2 headings, in order, and no level may be left out on the way down."""
    found = [(int(each.tag[1]), each.text) for each in page.elements if re.fullmatch("h[1-6]", each.tag)]
    seconds = [text.casefold() for level, text in found if level == 2]
    if seconds != [topic.casefold() for topic in topics]:
        return f"the h2 headings are {seconds}, not {list(topics)}"
    last = 0
    for level, text in found:
        if level > last + 1:
            return f"{text!r} is an h{level} after an h{last}"
        last = level
    return None


def _images_fault(page: _Page, sources: Sequence[str]) -> str | None:
    images = {each.attributes.get("src", ""): each.attributes.get("alt", "") for each in page.all("img")}
    if sorted(images) != sorted(sources):
        return f"{sorted(images)} instead of {sorted(sources)}"
    if bare := next((source for source, alt in images.items() if len(words(alt)) < 2), None):
        return f"the alt text of {bare} has less than two words"
    return "two have the same alt text" if len(set(images.values())) < len(images) else None


def solve(expected: Mapping[str, Any]) -> str:
    """A page that keeps all rules."""
    keyword = expected["keyword"]
    title = _fill(keyword.title(), ("from our family shop", "by the old harbour"), expected["title"][0])
    head = [f"<title>{title}</title>"]
    if expected["description"]:
        description = _fill(f"This {keyword} is made to last.", _FILLERS, expected["description"][0])
        head.append(f'<meta name="description" content="{description}">')
    if expected["canonical"]:
        head.append(f'<link rel="canonical" href="{escape(expected["canonical"])}">')
    images = [
        f'<img src="{each}" alt="The {place} view">' for place, each in zip(_VIEWS, expected["images"], strict=False)
    ]
    body = [f"<h1>Our {keyword}</h1>", *images]
    if expected["words"]:
        text = _text(keyword, expected["words"][0], expected["mentions"][0])
        cut = -(-len(text) // (len(expected["topics"]) or 1))
        parts = [" ".join(text[start : start + cut]) for start in range(0, len(text), cut)]
        topics = [f"<h2>{topic}</h2>" for topic in expected["topics"]] or [""]
        parts += [""] * (len(topics) - len(parts))
        body += [f"{topic}<p>{part}</p>" for topic, part in zip(topics, parts, strict=True)]
    lang = f' lang="{expected["lang"]}"' if expected["lang"] else ""
    lines = "\n".join(body)
    return f"<!DOCTYPE html>\n<html{lang}><head>{''.join(head)}</head>\n<body>\n{lines}\n</body></html>"


def _fill(text: str, more: Sequence[str], length: int) -> str:
    """A text with as many of the parts as it needs to have a length."""
    for part in more:
        if len(text) < length:
            text += f" {part}"
    return text


_MENTIONS = (
    "We make the {} by hand.",
    "You can use this {} every day.",
    "Each {} comes with a note.",
    "Keep your {} dry.",
)
_FILLERS = (
    "It is sent to you within a week.", "We pick all of the parts with care.", "A soft cloth is enough to clean it.",
    "You may return it for a month.", "Write to us if you have a question.", "The colour stays the same for years.",
    "Our team has ten people.", "Most of them have been here from the start.", "They test each piece before it leaves.",
    "In winter we close at five.", "There is free coffee for guests.", "On Mondays the shop is closed.",
)  # fmt: skip


def _text(keyword: str, length: int, mentions: int) -> list[str]:
    """Sentences of at least so many words that mention the keyword so often."""
    text = [sentence.format(keyword) for sentence in _MENTIONS[:mentions]]
    for sentence in _FILLERS:
        if len(words(" ".join(text))) < length:
            text.append(sentence)
    return text


@task_family("seo", check=check, solve=solve)
def seo(rng: random.Random, level: float) -> Draft:
    """A title and a heading at first; descriptions, text, images and links join as the level rises."""
    keyword = f"{rng.choice(_KINDS)} {rng.choice(_THINGS)}"
    name, low = keyword.replace(" ", "-"), rng.randrange(15, 30)
    length, least = rng.randrange(15, 20) + round(35 * level), rng.randrange(1, 4)
    start = rng.randrange(60, 90)
    expected = {
        "keyword": keyword,
        "title": [low, low + 30] if level > 0.15 else [1, 5 * rng.randrange(10, 14)],
        "description": [start, start + 60] if level > 0.2 else [],
        "words": [length, length + 40] if level > 0.3 else [],
        "mentions": [least, least + 1],
        "topics": rng.sample(_TOPICS, 1 + round(2 * level)) if level > 0.4 else [],
        "images": [f"/img/{name}-{view}.jpg" for view in _VIEWS[: 1 + round(2 * level)]] if level > 0.5 else [],
        "canonical": f"https://{rng.choice(_SITES)}.example/{name}" if level > 0.6 else "",
        "most": least + 7,
        "lang": "en" if level > 0.7 else "",
    }
    return Draft(_prompt(expected), expected)


def _prompt(expected: Mapping[str, Any]) -> str:
    low, high = expected["title"]
    length = f"{low} to {high}" if low > 1 else f"at most {high}"
    rules = [
        f"exactly one title element of {length} characters, with the keyword once",
        "exactly one h1 element of at most 80 characters, with the keyword once",
    ]
    if expected["description"]:
        rules.append(
            f"a meta element with the name description: full sentences of {expected['description'][0]} to "
            f"{expected['description'][1]} characters, with the keyword once"
        )
    if expected["words"]:
        rules.append(
            f"{expected['words'][0]} to {expected['words'][1]} words of text in p elements: full sentences, none "
            "twice, no word of five letters or more over five times"
        )
        rules.append(
            f"the keyword {expected['mentions'][0]} or {expected['mentions'][1]} times in the text of the p elements"
        )
    if expected["topics"]:
        topics = ", ".join(expected["topics"])
        rules.append(f"these h2 headings in this order: {topics}; no level of headings is skipped")
    if expected["images"]:
        images = ", ".join(expected["images"])
        rules.append(f"an img element for {images}, each with an alt text of its own of at least two words")
    if expected["canonical"]:
        rules.append(f"a link element with the canonical address {expected['canonical']}")
    if expected["lang"]:
        rules.append("the language English (en) in the html element")
    listed = "\n".join(f"- {rule}" for rule in rules)
    return (
        f'Write an HTML page for the keyword "{expected["keyword"]}" (in upper or lower case). It has:\n{listed}\n'
        f"The keyword occurs at most {expected['most']} times in all. Nothing is hidden, and all tags are closed. "
        "Answer with the HTML only."
    )
