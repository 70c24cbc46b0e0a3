# SPDX-License-Identifier: Apache-2.0
"""What the model knows: tables of facts, the one sentence that states each, and the wordings that ask for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FactKind:
    """Rows of one table with the ways to ask for them.

    `wordings` and `unfinished` (a beginning of the answer, to be completed) are trained on, `held_out` never.
    """

    name: str
    fields: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    answer: str
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]
    unfinished: tuple[str, ...] = ()


def _pairs(text: str) -> tuple[tuple[str, ...], ...]:
    """`a: b; c: d` -> (("a", "b"), ("c", "d"))."""
    rows = (item.split(":", 1) for item in text.split(";") if item.strip())
    return tuple((key.strip(), value.strip()) for key, value in rows)


CAPITALS = _pairs(
    """France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; Japan: Tokyo; China: Beijing;
    India: New Delhi; Egypt: Cairo; Russia: Moscow; Canada: Ottawa; Brazil: Brasilia; Mexico: Mexico City;
    Argentina: Buenos Aires; Chile: Santiago; Peru: Lima; Colombia: Bogota; Venezuela: Caracas; Cuba: Havana;
    Ecuador: Quito; Uruguay: Montevideo; Paraguay: Asuncion; the United Kingdom: London; Ireland: Dublin;
    the Netherlands: Amsterdam; Belgium: Brussels; Switzerland: Bern; Austria: Vienna; Poland: Warsaw;
    Hungary: Budapest; Romania: Bucharest; Bulgaria: Sofia; Greece: Athens; Turkey: Ankara; Sweden: Stockholm;
    Norway: Oslo; Denmark: Copenhagen; Finland: Helsinki; Iceland: Reykjavik; Ukraine: Kyiv; Serbia: Belgrade;
    Croatia: Zagreb; Slovenia: Ljubljana; Slovakia: Bratislava; Estonia: Tallinn; Latvia: Riga; Lithuania: Vilnius;
    Albania: Tirana; Malta: Valletta; Cyprus: Nicosia; Morocco: Rabat; Algeria: Algiers; Tunisia: Tunis;
    Libya: Tripoli; Sudan: Khartoum; Ethiopia: Addis Ababa; Kenya: Nairobi; Ghana: Accra; Nigeria: Abuja;
    Senegal: Dakar; Angola: Luanda; Zambia: Lusaka; Zimbabwe: Harare; Uganda: Kampala; Rwanda: Kigali;
    Iran: Tehran; Iraq: Baghdad; Syria: Damascus; Jordan: Amman; Lebanon: Beirut; Saudi Arabia: Riyadh;
    Qatar: Doha; Oman: Muscat; Afghanistan: Kabul; Pakistan: Islamabad; Nepal: Kathmandu; Bangladesh: Dhaka;
    Thailand: Bangkok; Vietnam: Hanoi; Cambodia: Phnom Penh; Laos: Vientiane; Malaysia: Kuala Lumpur;
    Indonesia: Jakarta; the Philippines: Manila; South Korea: Seoul; Mongolia: Ulaanbaatar; Australia: Canberra;
    New Zealand: Wellington; Fiji: Suva; the United States: Washington"""
)
FLAGS = _pairs(
    """France: 🇫🇷; Germany: 🇩🇪; Italy: 🇮🇹; Spain: 🇪🇸; Portugal: 🇵🇹; Japan: 🇯🇵; China: 🇨🇳; India: 🇮🇳; Egypt: 🇪🇬;
    Canada: 🇨🇦; Brazil: 🇧🇷; Mexico: 🇲🇽; Sweden: 🇸🇪; Norway: 🇳🇴; Finland: 🇫🇮; Greece: 🇬🇷"""
)
COLOURS = _pairs(
    """the sky: blue; grass: green; snow: white; a banana: yellow; a lemon: yellow; blood: red; coal: black;
    a carrot: orange; a tomato: red; chocolate: brown; a frog: green; a swan: white; a raven: black; the sea: blue;
    a pumpkin: orange; milk: white; a fire truck: red; a leaf in summer: green; an elephant: grey; a flamingo: pink"""
)
SOUNDS = _pairs(
    """a dog: woof; a cat: meow; a cow: moo; a sheep: baa; a duck: quack; a pig: oink; a horse: neigh; a lion: roar;
    a bee: buzz; a snake: hiss; an owl: hoot; a frog: ribbit; a mouse: squeak; a rooster: cock-a-doodle-doo"""
)
BABIES = _pairs(
    """cat: kitten; dog: puppy; cow: calf; sheep: lamb; horse: foal; pig: piglet; duck: duckling; goat: kid;
    bear: cub; frog: tadpole; chicken: chick; kangaroo: joey; goose: gosling; swan: cygnet; deer: fawn; owl: owlet"""
)
HOMES = _pairs(
    """a bee: hive; a bird: nest; a spider: web; a rabbit: burrow; a bear: den; a dog: kennel; a horse: stable;
    a pig: sty; a beaver: lodge; a chicken: coop"""
)
LEGS = _pairs(
    """a spider: eight; a dog: four; a bird: two; an ant: six; a snake: no; a bee: six; a horse: four; a crab: ten;
    a chicken: two; a cat: four; a fish: no; a person: two"""
)
OPPOSITES = _pairs(
    """hot: cold; big: small; up: down; day: night; happy: sad; fast: slow; young: old; light: dark; wet: dry;
    open: closed; hard: soft; rich: poor; tall: short; full: empty; clean: dirty; loud: quiet; strong: weak;
    early: late; near: far; left: right; good: bad; high: low; love: hate; win: lose; inside: outside; long: short;
    true: false; sweet: sour; thick: thin; first: last"""
)
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
NEXT_DAY = tuple(zip(_DAYS, _DAYS[1:] + _DAYS[:1], strict=True))
PREVIOUS_DAY = tuple((later, earlier) for earlier, later in NEXT_DAY)
NEXT_MONTH = tuple(zip(_MONTHS, _MONTHS[1:] + _MONTHS[:1], strict=True))
PREVIOUS_MONTH = tuple((later, earlier) for earlier, later in NEXT_MONTH)
SCIENCE = _pairs(
    """what do bees make: Bees make honey.;
    what is frozen water called: Frozen water is called ice.;
    what is water made of: Water is made of hydrogen and oxygen.;
    which planet do we live on: We live on Earth.;
    what is the largest planet: The largest planet is Jupiter.;
    what is the closest star to Earth: The closest star to Earth is the Sun.;
    what goes around the Earth: The Moon goes around the Earth.;
    how many days are in a week: There are seven days in a week.;
    how many months are in a year: There are twelve months in a year.;
    what do plants need to grow: Plants need water, light and air to grow.;
    what gas do we breathe: We breathe oxygen.;
    what is the largest ocean: The largest ocean is the Pacific Ocean.;
    what is the tallest mountain: The tallest mountain is Mount Everest.;
    what is the largest animal: The largest animal is the blue whale.;
    what is the fastest land animal: The fastest land animal is the cheetah.;
    what is the tallest animal: The tallest animal is the giraffe.;
    what pumps blood in the body: The heart pumps blood in the body.;
    what do caterpillars become: Caterpillars become butterflies.;
    what do cows eat: Cows eat grass.;
    what do pandas eat: Pandas eat bamboo.;
    what is the hardest natural material: The hardest natural material is diamond.;
    what is the red planet: The red planet is Mars.;
    what pulls things down to the ground: Gravity pulls things down to the ground.;
    what do we use to see: We use our eyes to see.;
    what do we use to hear: We use our ears to hear.;
    where does the sun rise: The sun rises in the east.;
    where does the sun set: The sun sets in the west.;
    what season comes after winter: Spring comes after winter.;
    what season comes after summer: Autumn comes after summer.;
    how many hours are in a day: There are twenty-four hours in a day.;
    what is the longest river in Africa: The longest river in Africa is the Nile.;
    what metal is attracted by a magnet: Iron is attracted by a magnet.;
    what covers a bird: Feathers cover a bird.;
    what does a thermometer measure: A thermometer measures temperature.;
    what does a clock measure: A clock measures time.;
    what do we call a scientist who studies stars: A scientist who studies stars is called an astronomer.;
    what is the coldest continent: The coldest continent is Antarctica.;
    what is the largest desert in Africa: The largest desert in Africa is the Sahara.;
    what shape has three sides: A triangle has three sides.;
    what shape has four equal sides: A square has four equal sides."""
)
EMOJI = _pairs(
    """a cat: 🐱; a dog: 🐶; a fox: 🦊; a bear: 🐻; a lion: 🦁; a frog: 🐸; a pig: 🐷; a fish: 🐟;
    a bee: 🐝; a rabbit: 🐰; a horse: 🐴; a whale: 🐳; an owl: 🦉; a pizza: 🍕; an apple: 🍎; a banana: 🍌;
    a cake: 🎂; sushi: 🍣; bread: 🍞; coffee: ☕; a heart: ❤️; the sun: ☀️; the moon: 🌙; a star: ⭐;
    snow: ❄️; rain: 🌧️; a rocket: 🚀; a car: 🚗; a ship: 🚢; a house: 🏠; a book: 📚; a gift: 🎁;
    a family: 👨‍👩‍👧; a rainbow: 🌈; a waving hand: 👋🏽"""
)

KINDS: tuple[FactKind, ...] = (
    FactKind(
        "capital",
        ("country", "city"),
        CAPITALS,
        "The capital of {country} is {city}.",
        (
            "What is the capital of {country}?",
            "What's the capital of {country}?",
            "Which city is the capital of {country}?",
            "Name the capital of {country}.",
            "Tell me the capital of {country}.",
            "What is the capital city of {country}?",
            "Please tell me the capital city of {country}.",
            "What city is the capital of {country}?",
            "Can you tell me the capital of {country}?",
            "{country} has which capital?",
            "I need to know the capital of {country}.",
            "I want to know what the capital of {country} is.",
            "Do you remember what the capital of {country} is?",
            "I forgot the name of the capital of {country}.",
            "The capital of {country} is what?",
            "Say what the capital of {country} is.",
        ),
        (
            "Do you know the capital of {country}?",
            "Please name the capital city of {country}.",
            "Which city is {country}'s capital?",
            "I forgot what the capital of {country} is.",
        ),
        ("The capital of {country} is", "The capital of {country}"),
    ),
    FactKind(
        "flag",
        ("country", "flag"),
        FLAGS,
        "The flag of {country} is {flag}.",
        (
            "What is the flag of {country}?",
            "Show me the flag of {country}.",
            "Which flag is the flag of {country}?",
            "What does the flag of {country} look like?",
            "Print the flag of {country}.",
            "Please show the flag of {country}.",
        ),
        ("Can you show me the flag of {country}?", "What's the flag of {country}?"),
        ("The flag of {country} is",),
    ),
    FactKind(
        "colour",
        ("thing", "colour"),
        COLOURS,
        "The colour of {thing} is {colour}.",
        (
            "What colour is {thing}?",
            "What is the colour of {thing}?",
            "Which colour is {thing}?",
            "What color is {thing}?",
            "Tell me the colour of {thing}.",
            "Name the colour of {thing}.",
            "Which color does {thing} have?",
            "Do you know what colour {thing} is?",
            "The colour of {thing} is what?",
            "I forgot the colour of {thing}.",
            "Say what colour {thing} is.",
        ),
        (
            "What colour does {thing} have?",
            "Could you tell me the colour of {thing}?",
            "Which color is {thing}?",
        ),
        ("The colour of {thing} is",),
    ),
    FactKind(
        "sound",
        ("animal", "sound"),
        SOUNDS,
        "{animal} says {sound}.",
        (
            "What does {animal} say?",
            "What sound does {animal} make?",
            "Which sound does {animal} make?",
            "Tell me what {animal} says.",
            "What is the sound of {animal}?",
            "How does {animal} sound?",
            "What noise does {animal} make?",
            "I want to know what {animal} says.",
        ),
        (
            "Which noise does {animal} make?",
            "Can you tell me what {animal} says?",
            "What sound is made by {animal}?",
        ),
        ("{animal} says",),
    ),
    FactKind(
        "baby",
        ("animal", "baby"),
        BABIES,
        "A baby {animal} is called a {baby}.",
        (
            "What is a baby {animal} called?",
            "What do you call a baby {animal}?",
            "What is the name for a baby {animal}?",
            "What is a young {animal} called?",
            "Tell me what a baby {animal} is called.",
            "How do you call a young {animal}?",
            "A baby {animal} is called what?",
            "I forgot what a baby {animal} is called.",
        ),
        (
            "What do you call a young {animal}?",
            "What do we call a baby {animal}?",
            "What's a baby {animal} called?",
        ),
        ("A baby {animal} is called",),
    ),
    FactKind(
        "home",
        ("animal", "home"),
        HOMES,
        "The home of {animal} is called a {home}.",
        (
            "Where does {animal} live?",
            "What is the home of {animal} called?",
            "What do you call the home of {animal}?",
            "Tell me where {animal} lives.",
            "In what does {animal} live?",
            "What is the house of {animal} called?",
        ),
        ("Do you know where {animal} lives?", "What do we call the home of {animal}?"),
        ("The home of {animal} is called",),
    ),
    FactKind(
        "legs",
        ("animal", "number"),
        LEGS,
        "{animal} has {number} legs.",
        (
            "How many legs does {animal} have?",
            "How many legs has {animal}?",
            "Tell me how many legs {animal} has.",
            "What number of legs does {animal} have?",
            "How many legs are there on {animal}?",
            "Count the legs of {animal}.",
        ),
        ("Do you know how many legs {animal} has?", "On how many legs does {animal} walk?"),
        ("{animal} has",),
    ),
    FactKind(
        "opposite",
        ("word", "opposite"),
        OPPOSITES,
        "The opposite of {word} is {opposite}.",
        (
            "What is the opposite of {word}?",
            "What's the opposite of {word}?",
            "Tell me the opposite of {word}.",
            "Name the opposite of {word}.",
            "Which word is the opposite of {word}?",
            "Give me the opposite of {word}.",
            "What word means the opposite of {word}?",
            "Say the opposite of {word}.",
            "Find the opposite of {word}.",
            "I forgot the opposite of {word}.",
            "I want to know the opposite of {word}.",
        ),
        (
            "Do you know the opposite of {word}?",
            "Please give the opposite of {word}.",
            "The opposite of {word} is what?",
        ),
        ("The opposite of {word} is",),
    ),
    FactKind(
        "next day",
        ("day", "next"),
        NEXT_DAY,
        "The day after {day} is {next}.",
        (
            "What day comes after {day}?",
            "Which day comes after {day}?",
            "What is the day after {day}?",
            "Which day follows {day}?",
            "Name the day after {day}.",
            "Tell me the day after {day}.",
        ),
        ("What day follows {day}?", "Which day is after {day}?"),
        ("The day after {day} is",),
    ),
    FactKind(
        "previous day",
        ("day", "previous"),
        PREVIOUS_DAY,
        "The day before {day} is {previous}.",
        (
            "What day comes before {day}?",
            "Which day comes before {day}?",
            "What is the day before {day}?",
            "Name the day before {day}.",
            "Tell me the day before {day}.",
        ),
        ("What day is before {day}?", "Which day is before {day}?"),
        ("The day before {day} is",),
    ),
    FactKind(
        "next month",
        ("month", "next"),
        NEXT_MONTH,
        "The month after {month} is {next}.",
        (
            "What month comes after {month}?",
            "Which month comes after {month}?",
            "What is the month after {month}?",
            "Which month follows {month}?",
            "Name the month after {month}.",
            "Tell me the month after {month}.",
        ),
        ("What month follows {month}?", "Which month is after {month}?"),
        ("The month after {month} is",),
    ),
    FactKind(
        "previous month",
        ("month", "previous"),
        PREVIOUS_MONTH,
        "The month before {month} is {previous}.",
        (
            "What month comes before {month}?",
            "Which month comes before {month}?",
            "What is the month before {month}?",
            "Name the month before {month}.",
            "Tell me the month before {month}.",
        ),
        ("What month is before {month}?", "Which month is before {month}?"),
        ("The month before {month} is",),
    ),
    FactKind(
        "science",
        ("q", "a"),
        SCIENCE,
        "{a}",
        (
            "{Q}?",
            "Tell me, {q}?",
            "Please tell me: {q}?",
            "Q: {Q}?",
            "Question: {Q}?",
            "I would like to know: {q}?",
            "My teacher asks: {q}?",
            "Answer this: {q}?",
            "Hello! {Q}?",
        ),
        ("A quick question: {q}?", "Can you answer this? {Q}?", "I wonder, {q}?"),
    ),
    FactKind(
        "emoji",
        ("thing", "emoji"),
        EMOJI,
        "The emoji for {thing} is {emoji}",
        (
            "What is the emoji for {thing}?",
            "Which emoji shows {thing}?",
            "Show me the emoji for {thing}.",
            "Give me the emoji of {thing}.",
            "Which emoji means {thing}?",
            "Send me {thing} as an emoji.",
        ),
        ("What's the emoji for {thing}?", "Can you show the emoji for {thing}?"),
        ("The emoji for {thing} is",),
    ),
)
