"""A seeded set of tool-calling conversations in OpenAI's form: ten tools, requests in many wordings.

Rows need one call, two at once, none, or are answered from a tool's result. Trained rows take names, places and things
from Debian's `wordnet-base`, which has thousands, so that arguments are copied and not recalled. Those of held-out rows
are in no row that is trained, and half of the held-out requests are in wordings of their own. Knows nothing of models,
templates or servers.
"""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from smollm2 import WORDNET

KINDS = ("call", "parallel", "none", "result")
OFFERED = 3
"""Tools a row offers; the right ones are among them, unless the right answer is that there is none."""
NO_TOOL = "I have no tool for that."

_NAME, _THING = "[A-Z][a-z]{2,9}", "[a-z]{3,10}"
_TOPICS = {
    "person": ("18", _NAME),
    "city": ("15", _NAME),
    "item": ("06 13", _THING),
    "title": ("04 11", _THING),
    "artist": ("05 10 14 20", _NAME),
    "who": ("06", _THING),
}
"""WordNet's files that have words of a kind (04 acts, 05 animals, 06 artifacts, ...), and the form of such a word."""
_WORDS = {
    "person": """Amara Bogdan Chiara Dmitri Esra Farid Greta Hiro Imani Jonas Kavya Liam Mireille Nadia Omar Petra
        Quentin Rosa Sven Tamika Uma Viktor Wanda Ximena Yusuf Zofia Anselm Beatriz Cormac Dalia Emeka Fiona Goran Hanne
        Ivo Jelena Kofi Leila Mateo Ngozi Otto Priya Radek Sunniva Tobias Ursula Vanya Wim Yara Zeno""",
    "city": """Lisbon Nairobi Osaka Tallinn Quito Bergen Lagos Turin Hanoi Perth Leipzig Porto Bogota Krakow Dakar
        Seville Utrecht Lima Aarhus Cork Montreal Izmir Tbilisi Valencia Accra Riga Oslo Ghent Cusco Dresden Palermo
        Bilbao Malmo Denver Kyoto Amman Zagreb Austin Naples Busan Geneva Havana Jaipur Kigali Lyon Minsk Patna""",
    "item": """milk bread carrots soap rice candles batteries coffee tea onions butter stamps paper tomatoes flour salt
        apples honey yoghurt pasta lemons garlic spinach cheese noodles ginger beans mustard towels matches pears
        vinegar sugar cocoa olives almonds shampoo walnuts celery basil""",
    "title": """standup retrospective dentist rehearsal budget onboarding interview workshop lunch inspection picnic
        planning seminar haircut tasting briefing demo audit choir massage lecture barbecue checkup tournament
        gardening sketching recital bowling fitting debate""",
    "artist": """Bonobo Radiohead Portishead Mogwai Slowdive Caribou Yello Kraftwerk Morcheeba Calexico Moloko Phoenix
        Beirut Feist Autechre Orbital Lamb Air Daughter Tortoise Stereolab Low Goldfrapp Zero7 Pavement Interpol
        Wilco Spoon Battles Deerhunter""",
}
_WHO = (
    "the train, my sister, the plumber, dinner, the parcel, our neighbour, the meeting, the taxi, my charger, the "
    "match, the doctor, your umbrella, the cake, the concert, the landlord, my flight, the gardener, lunch, the "
    "courier, the bus, our teacher, the report, the painter, the ferry, grandma, the printer, the invoice, the "
    "team, the choir, the dog"
)
_DOES = (
    "is late",
    "is here",
    "was cancelled",
    "can wait",
    "is ready now",
    "needs you",
    "comes on Friday",
    "is fine again",
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONEY = {"USD": "US dollars", "EUR": "euros", "JPY": "yen", "GBP": "pounds", "CHF": "Swiss francs"}
_LANGUAGES = ("French", "German", "Spanish", "Japanese", "Polish", "Turkish")
_CUISINES = ("italian", "thai", "mexican", "indian", "greek")
_ROOMS = ("kitchen", "bedroom", "hallway", "office", "garage")


class Slots:
    """Values for one side of the split."""

    def __init__(self, generator: random.Random, *, held_out: bool) -> None:
        self.generator = generator
        self.held_out = held_out

    def word(self, kind: str) -> str:
        """A word of this side."""
        return self.generator.choice(words(kind, held_out=self.held_out))

    def several(self, kind: str, least: int, most: int) -> list[str]:
        """Different words of this side."""
        return self.generator.sample(words(kind, held_out=self.held_out), self.generator.randint(least, most))

    def one_of(self, values: Any) -> Any:
        """A value that both sides know, as those of an enum."""
        return self.generator.choice(list(values))

    def number(self, least: int, most: int, step: int = 1) -> int:
        """A number; any within the bounds where it is trained."""
        return self.generator.randrange(least, most + 1, step if self.held_out else 1)

    def maybe(self, **arguments: Any) -> dict[str, Any]:
        """Optional arguments, there in half of the rows."""
        return arguments if self.generator.random() < 0.5 else {}


@cache
def words(kind: str, *, held_out: bool) -> list[str]:
    """The words of a kind on one side of the split: every third of ours is held out, WordNet's others are trained."""
    ours = _ours(kind)
    if held_out:
        return ours[2::3]
    files, form = _TOPICS[kind]
    lines = (WORDNET / "data.noun").read_text(encoding="utf-8").splitlines()
    entries = [line.split(maxsplit=5) for line in lines if not line.startswith("  ")]
    nouns = {entry[4] for entry in entries if entry[1] in files.split() and re.fullmatch(form, entry[4])}
    kept_back, article = _held_out_words(), "the " if kind == "who" else ""
    found = {article + noun for noun in nouns if noun.lower() not in kept_back}
    return sorted(found | {word for at, word in enumerate(ours) if at % 3 != 2})


def _ours(kind: str) -> list[str]:
    return _WHO.split(", ") if kind == "who" else _WORDS[kind].split()


def _held_out_words() -> set[str]:
    return {word for kind in _TOPICS for value in words(kind, held_out=True) for word in value.lower().split()}


@dataclass(frozen=True)
class Tool:
    """A tool, what may be asked of it, and in which words.

    The last two wordings are held out; held-out requests have those, or one of the five before, which are trained. In a
    wording `[key|text]` is said only where the argument `key` is given.
    """

    name: str
    description: str
    properties: dict[str, Any]
    required: tuple[str, ...]
    draw: Callable[[Slots], dict[str, Any]]
    wordings: tuple[str, ...]
    result: Callable[[Slots], dict[str, Any]] | None = None
    answer: str = ""
    """What is said of a result."""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as OpenAI's endpoint takes it."""
        parameters = {"type": "object", "properties": self.properties, "required": list(self.required)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


_TEXT, _INTEGER, _TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_LIST = {"type": "array", "items": _TEXT}


def _enum(values: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _exchange(slots: Slots) -> dict[str, Any]:
    source, target = slots.generator.sample(list(_MONEY), 2)
    return {"amount": slots.number(5, 950, 5), "source": source, "target": target}


def _flight(slots: Slots) -> dict[str, Any]:
    origin, destination = slots.several("city", 2, 2)
    return {"origin": origin, "destination": destination, **slots.maybe(nonstop=True)}


def _light(slots: Slots) -> dict[str, Any]:
    on = slots.one_of((True, False))
    return {"room": slots.one_of(_ROOMS), "on": on, **(slots.maybe(brightness=slots.number(10, 90, 5)) if on else {})}


TOOLS = (
    Tool(
        "get_weather",
        "Weather in a city",
        {"city": _TEXT, "unit": _enum(("celsius", "fahrenheit"))},
        ("city",),
        lambda s: {"city": s.word("city"), **s.maybe(unit=s.one_of(("celsius", "fahrenheit")))},
        (
            "Is it cold in {city}[unit|? Answer in {unit}]?",
            "I wonder what the weather does in {city}[unit|, {unit} please].",
            "Give me the temperature of {city}[unit| in {unit}].",
            "What is the weather in {city}[unit|, in {unit}]?",
            "How is the weather in {city} today[unit|, in {unit}]?",
            "Tell me the weather for {city}[unit| in {unit}].",
            "Weather in {city}[unit|, {unit}], please.",
            "Do I need a coat in {city}?[unit| Use {unit}.]",
            "I am going to {city}. What will the weather be[unit| in {unit}]?",
            "Could you check the weather in {city}[unit|, in {unit}]?",
        ),
        lambda s: {"degrees": s.number(-5, 35), "sky": s.one_of(("rain", "sun", "snow", "fog", "clouds"))},
        "It is {degrees} degrees with {sky} in {city}.",
    ),
    Tool(
        "set_alarm",
        "Set an alarm",
        {"hour": _INTEGER, "minute": _INTEGER, "label": _TEXT},
        ("hour", "minute"),
        lambda s: {"hour": s.number(5, 23), "minute": s.number(0, 55, 5), **s.maybe(label=s.word("title"))},
        (
            "My alarm should go off at {hour}:{minute}[label|, for {label}].",
            "At {hour}:{minute} I have to get up[label| for my {label}].",
            "New alarm, {hour}:{minute}[label|, title {label}].",
            "Set an alarm for {hour}:{minute}[label|, call it {label}].",
            "Wake me at {hour}:{minute}[label|, for the {label}].",
            "I need an alarm at {hour}:{minute}[label| named {label}].",
            "Alarm at {hour}:{minute}[label| for the {label}], please.",
            "Can you set the alarm to {hour}:{minute}[label|, label {label}]?",
            "Please make an alarm for {hour}:{minute}[label| with the label {label}].",
            "Ring at {hour}:{minute}[label| for the {label}].",
        ),
    ),
    Tool(
        "send_message",
        "Send a text message",
        {"to": _TEXT, "text": _TEXT},
        ("to", "text"),
        lambda s: {"to": s.word("person"), "text": f"{s.word('who')} {s.one_of(_DOES)}"},
        (
            "{to} should hear this: {text}.",
            "Drop {to} a line that {text}.",
            "Inform {to}, {text}.",
            "Tell {to}: {text}.",
            "Send a message to {to}: {text}.",
            "Text {to} that {text}.",
            "Write {to} the message '{text}'.",
            "Let {to} know that {text}.",
            "Message {to}: {text}.",
            "Could you send {to} a text saying '{text}'?",
        ),
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money",
        {"amount": _INTEGER, "source": _enum(_MONEY), "target": _enum(_MONEY)},
        ("amount", "source", "target"),
        _exchange,
        (
            "{amount} {source} in {target}?",
            "Work out {amount} {source} as {target}.",
            "My bill is {amount} {source}, so what is it in {target}?",
            "How much is {amount} {source} in {target}?",
            "Convert {amount} {source} to {target}.",
            "What are {amount} {source} worth in {target}?",
            "I have {amount} {source}. How many {target} is that?",
            "Change {amount} {source} into {target}, please.",
            "What do I get in {target} for {amount} {source}?",
            "Please convert {amount} {source} into {target}.",
        ),
        lambda s: {"value": s.number(3, 9999)},
        "That is {value} {target}.",
    ),
    Tool(
        "create_event",
        "Put an event into the calendar",
        {"title": _TEXT, "day": _enum(_DAYS), "guests": _LIST},
        ("title", "day"),
        lambda s: {"title": s.word("title"), "day": s.one_of(_DAYS), **s.maybe(guests=s.several("person", 1, 3))},
        (
            "On {day} there is {title}[guests| with {guests}], note it.",
            "Set up a {title} with the date {day}[guests|, inviting {guests}].",
            "New event on {day}: {title}[guests|, guests are {guests}].",
            "Put {title} on {day} into my calendar[guests| with {guests}].",
            "Add an event called {title} on {day}[guests| and invite {guests}].",
            "Schedule {title} for {day}[guests| with {guests}].",
            "I have a {title} on {day}[guests| with {guests}], add it to the calendar.",
            "Create the event {title} on {day}[guests|, guests: {guests}].",
            "Please plan a {title} for {day}[guests| and invite {guests}].",
            "Book {title} on {day} in the calendar[guests|, together with {guests}].",
        ),
    ),
    Tool(
        "search_flights",
        "Find flights",
        {"origin": _TEXT, "destination": _TEXT, "nonstop": _TRUTH},
        ("origin", "destination"),
        _flight,
        (
            "Which[nonstop| nonstop] planes go from {origin} to {destination}?",
            "Get me from {origin} to {destination} by plane[nonstop|, nonstop].",
            "I need to be in {destination}, flying from {origin}[nonstop| nonstop].",
            "Find[nonstop| nonstop] flights from {origin} to {destination}.",
            "I want to fly from {origin} to {destination}[nonstop|, nonstop].",
            "Are there[nonstop| nonstop] flights from {origin} to {destination}?",
            "Show me[nonstop| nonstop] flights to {destination} from {origin}.",
            "Flights {origin} to {destination}[nonstop|, nonstop only].",
            "Search for a[nonstop| nonstop] flight from {origin} to {destination}.",
            "How do I fly to {destination} from {origin}[nonstop|, nonstop]?",
        ),
        lambda s: {"flights": s.number(2, 9), "cheapest": s.number(40, 900)},
        "I found {flights} flights to {destination}, the cheapest for {cheapest}.",
    ),
    Tool(
        "play_music",
        "Play an artist",
        {"artist": _TEXT, "shuffle": _TRUTH},
        ("artist",),
        lambda s: {"artist": s.word("artist"), **s.maybe(shuffle=True)},
        (
            "Let me listen to {artist}[shuffle| in shuffle mode].",
            "{artist}, please[shuffle|, shuffled].",
            "I feel like {artist} now[shuffle|, shuffle the songs].",
            "Play {artist}[shuffle| on shuffle].",
            "I want to hear {artist}[shuffle|, on shuffle].",
            "Put on some {artist}[shuffle| and shuffle it].",
            "Play songs by {artist}[shuffle|, shuffle them].",
            "Music by {artist}[shuffle| on shuffle], please.",
            "Could you play {artist}[shuffle| on shuffle]?",
            "Start some {artist}[shuffle| on shuffle].",
        ),
    ),
    Tool(
        "set_light",
        "Switch the light of a room",
        {"room": _enum(_ROOMS), "on": _TRUTH, "brightness": _INTEGER},
        ("room", "on"),
        _light,
        (
            "The light in the {room} should be {on}[brightness|, at {brightness} percent].",
            "{room}: lamp {on}[brightness|, {brightness} percent].",
            "Have the {room} lamp {on}[brightness| at brightness {brightness}].",
            "Turn {on} the light in the {room}[brightness| at {brightness} percent].",
            "Switch the {room} light {on}[brightness|, {brightness} percent].",
            "Light {on} in the {room}[brightness| at {brightness} percent], please.",
            "Turn the {room} light {on}[brightness|, brightness {brightness}].",
            "Please switch {on} the {room} light[brightness| with brightness {brightness}].",
            "Can you turn {on} the lamp in the {room}[brightness| at {brightness} percent]?",
            "I want the {room} light {on}[brightness|, brightness {brightness}].",
        ),
    ),
    Tool(
        "add_to_list",
        "Add items to a list",
        {"list": _enum(("shopping", "packing")), "items": _LIST},
        ("list", "items"),
        lambda s: {"list": s.one_of(("shopping", "packing")), "items": s.several("item", 1, 3)},
        (
            "{items} must go on the {list} list.",
            "We are out of {items}: note that on the {list} list.",
            "For the {list} list: {items}.",
            "Add {items} to my {list} list.",
            "Put {items} on the {list} list.",
            "My {list} list needs {items}.",
            "Write {items} on my {list} list.",
            "I need {items} on the {list} list.",
            "Please add {items} to the {list} list.",
            "Can you put {items} on my {list} list?",
        ),
    ),
    Tool(
        "find_restaurant",
        "Find a restaurant",
        {"cuisine": _enum(_CUISINES), "city": _TEXT, "open_now": _TRUTH},
        ("cuisine", "city"),
        lambda s: {"cuisine": s.one_of(_CUISINES), "city": s.word("city"), **s.maybe(open_now=True)},
        (
            "I am hungry for {cuisine} food, I am in {city}[open_now|, it must be open now].",
            "{city}: which {cuisine} restaurant[open_now|, open now]?",
            "Take me to a {cuisine} dinner in {city}[open_now|, open now].",
            "Find {cuisine} food in {city}[open_now| that is open now].",
            "Where can I eat {cuisine} in {city}[open_now|, open now]?",
            "Is there a good {cuisine} restaurant in {city}[open_now| that is open now]?",
            "I would like {cuisine} food in {city}[open_now|, open now].",
            "Search a {cuisine} restaurant in {city}[open_now|, open now].",
            "Recommend a {cuisine} place in {city}[open_now| that is open now].",
            "We are in {city} and want {cuisine} food[open_now|, open now].",
        ),
        lambda s: {"name": s.word("artist"), "stars": s.number(1, 5)},
        "Try {name} in {city}, it has {stars} stars.",
    ),
)
_BY_NAME = {tool.name: tool for tool in TOOLS}
_JOINED = ("{0} Also: {1}", "{0} And then: {1}", "{0} {1}")
_SMALL_TALK = (
    ("Hello, I am {person}.", "Hello {person}, how can I help?"),
    ("My name is {person}.", "Nice to meet you, {person}."),
    ("Good morning from {city}!", "Good morning! How can I help?"),
    ("Thank you, {person} was right about you.", "You are welcome."),
    ("I am {person} and I live in {city}.", "Nice to meet you, {person}."),
)


@dataclass(frozen=True)
class Row:
    """A conversation, and what a model is asked of it."""

    kind: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    unseen_wording: bool

    @property
    def asked(self) -> list[dict[str, Any]]:
        """All but the last answer."""
        return self.messages[:-1]

    @property
    def request(self) -> str:
        """What the user says."""
        return str(self.messages[0]["content"])

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls that are right here."""
        return [_named(call) for call in self.messages[-1].get("tool_calls", [])]

    @property
    def trained(self) -> dict[str, Any]:
        """As a file of rows has it."""
        return {"messages": self.messages, "tools": self.tools}


def make_sets(seed: int, train: dict[str, int], held_out: dict[str, int]) -> tuple[list[Row], list[Row]]:
    """The rows to train and those held out, by how many of each kind; no request is in both, or twice."""
    trained = _rows(Slots(random.Random(f"{seed} train"), held_out=False), train, set())
    kept = _rows(Slots(random.Random(f"{seed} held out"), held_out=True), held_out, {row.request for row in trained})
    return trained, kept


def held_out_values(rows: list[Row]) -> set[str]:
    """The held-out names, places, things and texts that are anywhere in rows."""
    values = [value for kind in _TOPICS for value in words(kind, held_out=True)]
    known = re.compile(rf"\b(?:{'|'.join(map(re.escape, values))})\b", re.IGNORECASE)
    return {value.lower() for row in rows for value in known.findall(json.dumps(row.messages))}


# ---- kinds of rows


def _rows(slots: Slots, counts: dict[str, int], taken: set[str]) -> list[Row]:
    rows: dict[str, Row] = {}
    for kind, count in counts.items():
        wanted = len(rows) + count
        while len(rows) < wanted:
            row = _MAKERS[kind](slots)
            if row.request not in taken:
                rows.setdefault(row.request, row)
    made = list(rows.values())
    slots.generator.shuffle(made)
    return made


def _one_call(slots: Slots) -> Row:
    tool, arguments, said, unseen = _request(slots)
    return Row("call", [_user(said), _calling((tool, arguments))], _offer(slots, tool), unseen)


def _parallel(slots: Slots) -> Row:
    first, second = _request(slots), _request(slots)
    joined = slots.one_of(_JOINED).format(first[2], second[2])
    messages = [_user(joined), _calling(first[:2], second[:2])]
    return Row("parallel", messages, _offer(slots, first[0], second[0]), first[3] or second[3])


def _none(slots: Slots) -> Row:
    """Small talk, or a request for which the tool is not there."""
    if slots.generator.random() < 0.5:
        said, answer = slots.one_of(_SMALL_TALK)
        person, city = slots.word("person"), slots.word("city")
        messages = [_user(said.format(person=person, city=city)), _assistant(answer.format(person=person))]
        return Row("none", messages, _offer(slots), unseen_wording=False)
    tool, _, said, unseen = _request(slots)
    offered = [one for one in slots.generator.sample(TOOLS, OFFERED + 1) if one is not tool][:OFFERED]
    return Row("none", [_user(said), _assistant(NO_TOOL)], [one.schema for one in offered], unseen)


def _result(slots: Slots) -> Row:
    tool, arguments, said, unseen = _request(slots, [tool for tool in TOOLS if tool.result])
    assert tool.result is not None
    result = tool.result(slots)
    answer = tool.answer.format(**_spoken(arguments), **result)
    messages = [
        _user(said),
        _calling((tool, arguments)),
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
        _assistant(answer),
    ]
    return Row("result", messages, _offer(slots, tool), unseen)


_MAKERS: dict[str, Callable[[Slots], Row]] = {
    "call": _one_call,
    "parallel": _parallel,
    "none": _none,
    "result": _result,
}


def _request(slots: Slots, tools: Any = TOOLS) -> tuple[Tool, dict[str, Any], str, bool]:
    """A tool, arguments, the words, and whether such words are held out."""
    tool = slots.one_of(tools)
    arguments = tool.draw(slots)
    known, kept_back = tool.wordings[-7 if slots.held_out else 0 : -2], tool.wordings[-2:]
    unseen = slots.held_out and slots.generator.random() < 0.5
    wording = slots.one_of(kept_back if unseen else known)
    kept = re.sub(r"\[(\w+)\|(.*?)\]", lambda part: part[2] if part[1] in arguments else "", wording)
    said = kept.format(**_spoken(arguments))
    return tool, arguments, said[0].upper() + said[1:], unseen


def _spoken(arguments: dict[str, Any]) -> dict[str, str]:
    """Arguments as people say them."""
    said = {}
    for key, value in arguments.items():
        if isinstance(value, bool):
            said[key] = "on" if value else "off"
        elif isinstance(value, list):
            said[key] = value[0] if len(value) == 1 else f"{', '.join(value[:-1])} and {value[-1]}"
        else:
            said[key] = f"{value:02d}" if key == "minute" else _MONEY.get(value, str(value))
    return said


def _offer(slots: Slots, *needed: Tool) -> list[dict[str, Any]]:
    """The needed tools and some others, in any order."""
    names = list(dict.fromkeys(tool.name for tool in needed))
    others = [name for name in _BY_NAME if name not in names]
    names += slots.generator.sample(others, OFFERED - len(names))
    slots.generator.shuffle(names)
    return [_BY_NAME[name].schema for name in names]


def _user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def _assistant(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said}


def _calling(*calls: tuple[Tool, dict[str, Any]]) -> dict[str, Any]:
    """A turn that calls; arguments are JSON text, as OpenAI has them."""
    made = [
        {"id": f"call_{at}", "type": "function", "function": {"name": tool.name, "arguments": json.dumps(arguments)}}
        for at, (tool, arguments) in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def _named(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return call["function"]["name"], json.loads(call["function"]["arguments"])
