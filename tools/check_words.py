#!/usr/bin/env python3
"""Wording that reads as translated: six patterns, each with its cure.

    tools/check_words.py [PATH...]      files or folders (default: every tracked file)

Prints "file:line: found, write instead" for each place, and ends with 1 if there is one. It reads
comments and docstrings, string literals of src/, kernels/ and the Python package (errors, help),
man pages and documents.

  1  A sentence begins with What, Who, Whose, Of, Whether or As: name the noun, or begin with a verb.
     A question may begin so, and a heading.
  2  "but for": except.
  3  "beside": next to, besides, against.
  4  "so many", "so much": that many, or the name of the variable.
  5  A comment begins with of, that, which, whose, whether, how or what: a label has a noun at its
     head ("Number of ...").
  6  A function's comment begins with True, Number of, ...: it begins with a verb ("Returns").
"""
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Texts that others wrote, the training texts' questions, and the cases of this script's own test.
NOT_OURS = ("tests/golden/", "tests/text/tokenizers/", "tests/tools/check_words_test.py", "tools/check_words.py")
# Their string literals are data of tests, prompts and programs in other languages.
NO_STRINGS = ("tests/", "tools/")
STRINGS_ANYWAY = ("tools/package/python/riffle/",)

BEGINS = re.compile(
    r"""(?:\A|(?<=[.!?:;])\s+|(?<=[.!?][)"'])\s+|\n\s*\n\s*|\A-{4}[^\n]*\n\s*)["'(*`]*"""
    r"""(What|Who|Whose|Of|Whether|As|Those(?=\s+(?:of|with|for|at|that|which|who)\b))(?=\s)""")
BEGIN_CURES = {
    "What": "name the thing",
    "Who": "name the person or program",
    "Whose": "name the owner",
    "Of": "put the noun first",
    "Whether": 'a noun, or a verb such as "Tells whether"',
    "As": "begin with the subject or the verb",
    "Those": "name the things",
}
ANYWHERE = (
    (2, re.compile(r"\bbut\s+for\b", re.I), "except"),
    (3, re.compile(r"\bbeside\b", re.I), "next to, besides or against"),
    (4, re.compile(r"\bso\s+(?:many|much)\b", re.I), "that many, that much, or the name of the variable"),
)
LABEL = re.compile(r"""\A["'(]*(of|that|which|whose|whether|how|what|who)\s""", re.I)
LABEL_CURE = 'a noun at the head of a label, such as "Number of"'
NO_VERB = re.compile(r"\A(True|False|(?:The )?(?:[Nn]umber|[Ii]ndex|[Ss]ize|[Ll]ength|[Nn]ame|[Bb]ytes|[Cc]ount) of)\b")
NO_VERB_CURE = 'a verb first, such as "Returns"'
SENTENCE_END = re.compile(r"""[.!?](?=["')*`]*(?:\s|\Z))""")
# In string literals: a question whose rest is put together elsewhere.
ASKS = re.compile(r"(?:What|Who|Whose)\s+(?:is|are|was|were|does|do|did)\b")

C_FAMILY = {".h", ".c", ".cpp", ".cu", ".cuh"}
SCRIPTS = {".sh", ".mk"}
C_TOKEN = re.compile(
    r"""//(?P<line>(?:\\\n|[^\n])*)|/\*(?P<block>.*?)\*/|R"(?P<tag>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=tag)"|"""
    r""""(?P<text>(?:\\.|[^"\\\n])*)"|'(?:\\.|[^'\\\n])+'|\w+(?:'\w+)*""", re.S)
DECLARES = re.compile(r"^\s*(?:template\s*<.*>\s*)?(?:[\w:<>,*&\[\]\s]+?[\s*&])~?\w+\(")
DECLARES_NOT = re.compile(r"^\s*(?:return|if|for|while|switch|case|using|typedef|#|struct|class|enum|else)\b")


class Text:
    """A comment, a string, a paragraph or a cell: its words, with the line of each character."""

    def __init__(self, kind, line, function=False):
        self.kind = kind  # "comment", "string", "document" or "heading"
        self.function = function
        self.first = line
        self.words = ""
        self.lines = []

    def add(self, words, line):
        self.words += words
        self.lines += [line] * len(words)

    def line_of(self, at):
        return self.lines[at] if at < len(self.lines) else self.first


def joined_comments(comments, lines, in_header=False):
    """Yields a text for each run of comments on consecutive lines. comments: (line, column, words)."""
    text, last, left, behind_code = None, -1, -1, False
    for line, column, words in comments:
        has_code = bool(lines[line - 1][:column].strip())
        goes_on = (text is not None and not has_code and line == last + 1
                   and (column >= left if behind_code else column == left))
        if not goes_on:
            if text is not None:
                yield text
            text, left, behind_code = Text("comment", line), column, has_code
        text.add(words.strip() + "\n", line)
        last = line
        below = lines[line] if line < len(lines) else ""
        text.function = (in_header and not has_code and bool(DECLARES.match(below))
                         and not DECLARES_NOT.match(below))
    if text is not None:
        yield text


def of_c(source, in_header, with_strings):
    lines = source.splitlines()
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    comments, strings = [], []
    line, seen = 1, 0
    for found in C_TOKEN.finditer(source):
        line += source.count("\n", seen, found.start())
        seen = found.start()
        column = found.start() - starts[line - 1]
        if found["line"] is not None:
            comments.append((line, column, found["line"].lstrip("/!<")))
        elif found["block"] is not None:
            for i, words in enumerate(found["block"].split("\n")):
                comments.append((line + i, column, words.strip().lstrip("*")))
        elif with_strings and not lines[line - 1].lstrip().startswith("#include"):
            words = found["text"] if found["text"] is not None else found["raw"]
            if words is not None:
                strings.append((found.start(), found.end(), line, words.replace("\\n", "\n").replace('\\"', '"')))
    yield from joined_comments(comments, lines, in_header)
    text, end = None, 0
    for start, stop, line, words in strings:
        if text is None or source[end:start].strip():
            if text is not None:
                yield text
            text = Text("string", line)
        text.add(words, line)
        end = stop
    if text is not None:
        yield text


def of_python(source, with_strings):
    lines = source.splitlines()
    comments = [(*token.start, token.string.lstrip("#:"))
                for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT and not token.string.startswith("#!")]
    yield from joined_comments(comments, lines)
    tree, docstrings = ast.parse(source), set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docstrings.add(first.lineno)
            text = Text("comment", first.lineno, isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
            for line in range(first.lineno, first.end_lineno + 1):
                text.add(lines[line - 1].strip().replace('"""', "") + "\n", line)
            yield text
    for node in ast.walk(tree) if with_strings else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in docstrings:
            text = Text("string", node.lineno)
            text.add(node.value, node.lineno)
            yield text


def of_script(source):
    """Finds comments of shell scripts and makefiles: a # behind white space, outside of quotation marks."""
    lines = source.splitlines()
    comments = []
    for line, words in enumerate(lines, 1):
        found = re.match(r"""((?:[^"'#]|(?<=\S)#|"[^"]*"|'[^']*')*?)(?:^|(?<=\s))#(?!!)(.*)""", words)
        if found:
            comments.append((line, len(found[1]), found[2]))
    return joined_comments(comments, lines)


def of_document(source):
    text, in_code = None, False
    for line, words in enumerate(source.splitlines(), 1):
        words, indented = words.strip(), words.startswith("    ")
        is_cells, is_heading, is_fence = words.startswith("|"), words.startswith("#"), words.startswith("```")
        is_item = re.match(r"[-*] |\d+\. ", words)
        if text is not None and (not words or in_code or is_cells or is_heading or is_fence or is_item):
            yield text
            text = None
        if is_fence:
            in_code = not in_code
        if not words or is_fence or in_code or (indented and text is None and not is_item):
            continue
        if is_cells or is_heading:
            for cell in words.strip("|").split("|") if is_cells else [words.lstrip("# ")]:
                one = Text("document" if is_cells else "heading", line)
                one.add(cell.strip(" *"), line)
                yield one
            continue
        text = text or Text("document", line)
        text.add(re.sub(r"\A(?:[-*] |\d+\. )", "", words) + "\n", line)
    if text is not None:
        yield text


def of_man_page(source):
    text, in_code = None, False
    for line, words in enumerate(source.splitlines(), 1):
        in_code = (in_code or words.startswith((".nf", ".EX"))) and not words.startswith((".fi", ".EE"))
        emphasis = re.match(r"\.[BIR]{1,2} ", words)
        if (words.startswith(".") and not emphasis) or in_code:
            if text is not None:
                yield text
            text = None
            continue
        text = text or Text("document", line)
        text.add(re.sub(r"\\f.|\\&|\\(?=[-.'])", "", words[len(emphasis[0]):] if emphasis else words) + "\n", line)
    if text is not None:
        yield text


def texts(file, name):
    """Returns the texts of a file that people read; none for other kinds of files."""
    with_strings = not name.startswith(NO_STRINGS) or name.startswith(STRINGS_ANYWAY)
    readers = {".py": lambda s: of_python(s, with_strings), ".md": of_document, ".1": of_man_page}
    readers |= {suffix: lambda s: of_c(s, file.suffix in (".h", ".cuh"), with_strings) for suffix in C_FAMILY}
    readers |= {suffix: of_script for suffix in SCRIPTS}
    readers |= {"Makefile": of_script, "run": of_script, "make_help.txt": of_document}
    reader = readers.get(file.name) or readers.get(file.suffix)
    return reader(file.read_text()) if reader else ()


def is_question(text, at):
    end = SENTENCE_END.search(text.words, at)
    if end is None:
        return text.kind == "string" and bool(ASKS.match(text.words, at))
    return end[0] == "?"


def problems(text):
    """Yields (position, pattern, words found, cure)."""
    for found in BEGINS.finditer(text.words):
        if text.kind != "heading" and not is_question(text, found.start(1)):
            yield found.start(1), 1, found[1], BEGIN_CURES[found[1]]
    for pattern, expression, cure in ANYWHERE:
        for found in expression.finditer(text.words):
            yield found.start(), pattern, " ".join(found[0].split()), cure
    label = LABEL.match(text.words) if text.kind == "comment" else None
    if label and label[1] not in BEGIN_CURES and not is_question(text, 0):
        yield label.start(1), 5, label[1], LABEL_CURE
    if text.function and (found := NO_VERB.match(text.words)):
        yield 0, 6, found[1], NO_VERB_CURE


def tracked(paths):
    """Returns the tracked files in the given files and folders, and given files that are not tracked."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines()
    outside = [path for path in paths if pathlib.Path(path).is_file() and path not in names]
    return names + outside


def main():
    bad = 0
    paths = [str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
             for path in (pathlib.Path(arg).resolve() for arg in sys.argv[1:])]
    for name in tracked(paths):
        file = ROOT / name
        if not file.is_file() or name.startswith(NOT_OURS):
            continue
        places = [(text.line_of(at), at, *rest) for text in texts(file, name) for at, *rest in problems(text)]
        for line, _, pattern, found, cure in sorted(places):
            bad += 1
            print(f"{name}:{line}: found {found!r}, write {cure} ({pattern})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
