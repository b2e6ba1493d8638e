"""Synthetic facts, questions and answers for a small long-context retrieval model.

This is the one place where the word lists and sentence templates live.  The training data mix (data.py), the
evaluation (eval.py), the demo document (tools/fixtures/sample_document.py) and, through
tools/fixtures/make_facts.py, the C++ header of `riffle eval` all take them from here.

Every fact function takes a `random.Random` and the set of keys `used` in the document so far, and returns
    statements   a list of sentences to hide in the document; an ("ORDERED", [sentences]) entry must keep its order
    questions    a list of (question, answer) pairs
The order in which random numbers are drawn is part of the recipe: the same seed gives the same facts.
"""

# ---- Word lists ----

FIRST_NAMES = """
    Ada Alan Alice Amos Anna Arthur Beatrice Ben Bertha Boris Carl Clara Conrad Daisy Daniel Dora Edgar Edith
    Eliza Emil Erik Esther Eva Felix Flora Frank Freya George Gilbert Greta Hanna Harold Helen Henry Hugo Ida
    Igor Irene Isaac Ivan Jane Jasper Joan Julia Karl Kate Laura Leo Lena Lewis Lucy Magnus Maria Martin Maud
    Max Mina Nadia Nell Nina Noah Olga Oscar Otto Paul Peter Phoebe Rachel Ralph Rosa Rufus Ruth Sam Sarah Silas
    Simon Sofia Stella Theo Thomas Una Vera Victor Violet Walter Wilma Xenia Yuri Zelda Zoe
""".split()

LAST_NAMES = """
    Abbott Archer Baker Barlow Becker Bishop Black Bolton Bright Brook Burns Carter Castle Chase Clark Cole Cook
    Cross Dale Drake Dunn Ellis Farmer Fisher Fleming Ford Fox Frost Gale Gibbs Grant Green Hale Hardy Hart Hill
    Holmes Hunt Jordan King Knight Lamb Lane Marsh Mason Mercer Miller Moore Nash North Owen Page Palmer Park
    Pike Pond Porter Quinn Reed Rivers Rose Rowe Sharp Shaw Stone Stark Swift Taylor Thorne Tucker Vance Wade
    Ward Waters Webb West White Wood York
""".split()

CITIES = """
    Lisbon Madrid Paris London Rome Vienna Prague Berlin Oslo Dublin Athens Cairo Delhi Tokyo Boston Chicago
    Denver Dallas Havana Lima Quito Bogota Geneva Zurich Milan Naples Venice Munich Hamburg Bremen Dresden
    Warsaw Krakow Riga Vilnius Tallinn Helsinki Stockholm Bergen Glasgow Leeds Bristol Oxford Cambridge York
    Cork Nice Lyon Bordeaux Porto Seville Granada Malta Tunis Tripoli Nairobi Lagos Dakar Bombay Madras Calcutta
    Singapore Sydney Auckland Toronto Montreal Quebec
""".split()

JOBS = """
    baker carpenter doctor farmer lawyer painter sailor teacher tailor printer mason miller nurse pilot gardener
    clerk butcher barber blacksmith weaver librarian soldier singer dancer judge chemist engineer surveyor
    watchmaker fisherman
""".split()

ANIMALS = """
    dog cat horse parrot goat rabbit tortoise monkey donkey falcon pony sheep goose owl fox hedgehog ferret
    canary pigeon lizard
""".split()

COLOURS = """
    red blue green yellow white black brown grey purple orange golden silver scarlet crimson pink
""".split()

FOODS = """
    apples pears bread cheese honey soup fish oysters cherries plums cakes rice nuts figs grapes pie mushrooms
    onions turnips lemons
""".split()

DAYS = """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
""".split()

ADJECTIVES = """
    amber ancient bitter bold brave bright calm clever cloudy cold crisp curious dark deep distant dusty early
    empty fancy fierce flat foggy frozen gentle giant glad grand happy heavy hidden hollow honest humble icy
    idle jolly keen kind large late lazy little lonely loud lucky mellow misty modest narrow noble odd old pale
    patient plain polite proud quick quiet rapid rare rich rough round rusty sad sharp shiny short shy silent
    simple sleepy slow small smooth soft solid sour steady strange strong sunny sweet swift tall tame thick thin
    tiny tired vast warm weary wet wide wild wise young
""".split()

NOUNS = """
    acorn anchor apple arrow barrel basket beacon bell berry bottle branch bridge bucket button cabin candle
    canyon carpet cart castle cave chain chair chest circle clock cloud coat coin comet compass copper corner
    cottage cradle crown desert diamond door dragon drum feather fence field fiddle flame flower forest fountain
    garden gate glove hammer harbor harvest hat hill island jacket jewel kettle key kite ladder lake lamp
    lantern leaf letter lock magnet map marble meadow mirror mountain needle ocean orchard oven paper pebble
    pencil pillow pocket pond puzzle river road rocket roof rope saddle sail shadow shell ship shoe spoon spring
    star stone storm table temple thread thunder tower trumpet tunnel valley village violin wagon wall water
    wheel whistle window winter wolf
""".split()

# ---- Templates: {k} key, {v} value, {p} person, {w} the name of the pass key, {kind} number, word or code ----

PASSKEY_NAMES = ["pass key", "secret code", "password"]
PASSKEY_STATEMENTS = ["The {w} is {v}. Remember it. {v} is the {w}.", "The {w} is {v}."]
PASSKEY_QUESTION = "What is the {w}?"
PASSKEY_ANSWER = "The {w} is {v}."

MAGIC_KINDS = ["number", "word", "code"]
MAGIC_STATEMENT = "One of the special magic {kind}s for {k} is: {v}."
MAGIC_QUESTION_ONE = "What is the special magic {kind} for {k} mentioned in the provided text?"
MAGIC_ANSWER_ONE = "The special magic {kind} for {k} mentioned in the provided text is {v}."
MAGIC_QUESTION_MANY = "What are all the special magic {kind}s for {k} mentioned in the provided text?"
MAGIC_ANSWER_MANY = "The special magic {kind}s for {k} mentioned in the provided text are {v}."

# (statement, question, answer, values: a word list, or the number of digits of a random number)
PERSON_ATTRIBUTES = [
    ("{p} lives in {v}.", "Where does {p} live?", "{p} lives in {v}.", CITIES),
    ("{p} works as a {v}.", "What is the work of {p}?", "{p} works as a {v}.", JOBS),
    ("{p} keeps a {v}.", "Which pet does {p} keep?", "{p} keeps a {v}.", ANIMALS),
    ("{p} was born in {v}.", "Where was {p} born?", "{p} was born in {v}.", CITIES),
    ("{p} likes to eat {v}.", "What does {p} like to eat?", "{p} likes to eat {v}.", FOODS),
    ("{p} wears a {v} coat.", "What colour is the coat of {p}?", "The coat of {p} is {v}.", COLOURS),
    ("The telephone number of {p} is {v}.", "What is the telephone number of {p}?",
     "The telephone number of {p} is {v}.", 6),
    ("{p} stays in room {v}.", "In which room does {p} stay?", "{p} stays in room {v}.", 3),
    ("The meeting with {p} is on {v}.", "When is the meeting with {p}?", "The meeting with {p} is on {v}.", DAYS),
]

HIDDEN_STATEMENT = "The {k} was hidden in {v}."
HIDDEN_QUESTION = "Where was the {k} hidden?"
HIDDEN_ANSWER = "The {k} was hidden in {v}."
PRICE_STATEMENT = "The price of the {k} is {v} pounds."
PRICE_QUESTION = "What is the price of the {k}?"
PRICE_ANSWER = "The price of the {k} is {v} pounds."

VARS_FIRST = "VAR {k} = {v}."
VARS_NEXT = "VAR {k} = VAR {v}."
VARS_QUESTION = "Find all variables that are assigned the value {v} in the text above."
VARS_ANSWER = "The variables assigned the value {v} are {k}."

KV_HEADING = "Here is a list of keys and values."
KV_LINE = '"{k}": "{v}"'
KV_QUESTION = 'What is the value of the key "{k}"?'
KV_ANSWER = 'The value of the key "{k}" is "{v}".'
REGISTER_HEADING = "Read the register."
REGISTER_LINE = "line {k}: REGISTER_CONTENT is {v}."
REGISTER_QUESTION = "What is the REGISTER_CONTENT in line {k}?"
REGISTER_ANSWER = "The REGISTER_CONTENT in line {k} is {v}."

_HELLO = "Hello. Give me a long text and ask me what is in it."
_FINDER = "I am a small model that reads long texts and finds things in them."
CHAT = [
    ("Hello", _HELLO),
    ("Hello!", _HELLO),
    ("Hi", _HELLO),
    ("Good morning", "Good morning. Give me a long text and ask me what is in it."),
    ("Who are you?", _FINDER),
    ("What are you?", _FINDER),
    ("What can you do?",
     "I can find names, numbers, places and passages in a long text, and I can continue a passage."),
    ("How are you?", "I am well, thank you. What shall I read for you?"),
    ("Thank you", "You are welcome."),
    ("Thanks", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Goodbye", "Goodbye."),
    ("Bye", "Goodbye."),
    ("Help", "Give me a long text first, and then ask a question about it, such as: Where does Anna Hill live?"),
    ("What is your name?", "I have no name. I am a small model that reads long texts."),
    ("Are you a person?", "No, I am a small language model."),
]

# ---- Random values ----


def digits(r, n):
    """A number of exactly n digits (the first is not 0)."""
    return str(r.randint(1, 9)) + "".join(str(r.randint(0, 9)) for _ in range(n - 1))


def hex_digits(r, n):
    return "".join(r.choice("0123456789abcdef") for _ in range(n))


def hyphen_key(r):
    """A key such as "amber-lantern"."""
    return r.choice(ADJECTIVES) + "-" + r.choice(NOUNS)


def person_name(r):
    return r.choice(FIRST_NAMES) + " " + r.choice(LAST_NAMES)


def listing(items):
    """"a", "a and b", "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def register_value(r):
    """The value of a kv line: a number of 4 to 8 digits (55%), a noun (20%) or 8 hexadecimal digits (25%)."""
    u = r.random()
    if u < 0.55:
        return digits(r, r.randint(4, 8))
    if u < 0.75:
        return r.choice(NOUNS)
    return hex_digits(r, 8)


# ---- Fact groups ----


def passkey(r, used):
    """At most one per document, as its question names no key; a second one becomes a magic fact."""
    if "passkey" in used:
        return magic(r, used)
    used.add("passkey")
    v = digits(r, 5)
    w = r.choice(PASSKEY_NAMES)
    statement = r.choice(PASSKEY_STATEMENTS).format(w=w, v=v)
    return [statement], [(PASSKEY_QUESTION.format(w=w), PASSKEY_ANSWER.format(w=w, v=v))]


def magic(r, used):
    """One value for a key (75%), or two to four values in separate sentences, all asked for at once.

    The sentences of several values are shuffled over the document by the data mix, so the answer lists them in no
    fixed order: score such answers as sets.
    """
    k = hyphen_key(r)
    while k in used:
        k = hyphen_key(r)
    used.add(k)
    n = 1 if r.random() < 0.75 else r.randint(2, 4)
    kind = r.choice(MAGIC_KINDS)
    make = {
        "number": lambda: digits(r, 7),
        "word": lambda: r.choice(ADJECTIVES) + " " + r.choice(NOUNS),
        "code": lambda: hex_digits(r, 8),
    }[kind]
    values = [make() for _ in range(n)]
    statements = [MAGIC_STATEMENT.format(kind=kind, k=k, v=v) for v in values]
    if n == 1:
        question = MAGIC_QUESTION_ONE.format(kind=kind, k=k)
        answer = MAGIC_ANSWER_ONE.format(kind=kind, k=k, v=values[0])
    else:
        question = MAGIC_QUESTION_MANY.format(kind=kind, k=k)
        answer = MAGIC_ANSWER_MANY.format(kind=kind, k=k, v=listing(values))
    return statements, [(question, answer)]


def person(r, used):
    """One to three attributes of a person, each with its own question."""
    p = person_name(r)
    while p in used:
        p = person_name(r)
    used.add(p)
    statements, questions = [], []
    for statement, question, answer, values in r.sample(PERSON_ATTRIBUTES, r.choice([1, 1, 2, 3])):
        v = digits(r, values) if isinstance(values, int) else r.choice(values)
        statements.append(statement.format(p=p, v=v))
        questions.append((question.format(p=p), answer.format(p=p, v=v)))
    return statements, questions


def thing(r, used):
    """Where a thing was hidden, or what it costs (one half each)."""

    def name():
        adjective, noun = r.choice(ADJECTIVES), r.choice(NOUNS)
        return f"{adjective} {noun}"

    k = name()
    while k in used:
        k = name()
    used.add(k)
    city = r.choice(CITIES)
    price = digits(r, r.randint(2, 5))
    if r.random() < 0.5:
        statement, question, answer, v = HIDDEN_STATEMENT, HIDDEN_QUESTION, HIDDEN_ANSWER, city
    else:
        statement, question, answer, v = PRICE_STATEMENT, PRICE_QUESTION, PRICE_ANSWER, price
    return [statement.format(k=k, v=v)], [(question.format(k=k), answer.format(k=k, v=v))]


def variables(r, used):
    """A chain of two to five assignments; the question asks for every variable that ends up with the value."""
    n = r.randint(2, 5)
    v = digits(r, 5)
    names = []
    while len(names) < n:
        x = "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(3))
        if x not in used:
            used.add(x)
            names.append(x)
    statements = [VARS_FIRST.format(k=names[0], v=v)]
    statements += [VARS_NEXT.format(k=names[i], v=names[i - 1]) for i in range(1, n)]
    return [("ORDERED", statements)], [(VARS_QUESTION.format(v=v), VARS_ANSWER.format(v=v, k=listing(names)))]


FACT_WEIGHTS = [(passkey, 1), (magic, 4), (person, 4), (thing, 2), (variables, 1)]


def facts(r, n, used):
    """n fact groups drawn by FACT_WEIGHTS."""
    statements, questions = [], []
    for make in r.choices([f for f, _ in FACT_WEIGHTS], [w for _, w in FACT_WEIGHTS], k=n):
        s, q = make(r, used)
        statements += s
        questions += q
    return statements, questions


def kv_document(r, n):
    """A register of n keys and values, and up to six questions about it. Returns (text, questions)."""
    pairs = {}
    key_style = r.random()
    while len(pairs) < n:
        k = hex_digits(r, 8) if key_style < 0.5 else hyphen_key(r)
        pairs[k] = register_value(r)
    asked = r.sample(list(pairs.items()), min(n, r.randint(1, 6)))
    if r.random() < 0.5:
        heading, line, question, answer = KV_HEADING, KV_LINE, KV_QUESTION, KV_ANSWER
    else:
        heading, line, question, answer = REGISTER_HEADING, REGISTER_LINE, REGISTER_QUESTION, REGISTER_ANSWER
    text = heading + "\n" + "\n".join(line.format(k=k, v=v) for k, v in pairs.items())
    return text, [(question.format(k=k), answer.format(k=k, v=v)) for k, v in asked]
