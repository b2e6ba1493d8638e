"""Prompts with the options of their answers, and what the tokens of an answer become.

The rules of a conversation are the library's (riffle_request.h): this module hands it messages and
tools, and takes text, reasoning and calls from it."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

from . import _structs as C
from ._library import (
    ERRORS,
    BadArgument,
    Error,
    bool_argument,
    shown,
    text_argument,
    tokens_array,
)
from ._options import Thinking, generate_options, grammar_fields, thinking_argument, with_seed
from ._request import Refusal, Request
from ._settings import Options

if TYPE_CHECKING:
    from . import Model
    from ._options import GenerateOptions

    class AnswerOptions(GenerateOptions, total=False):
        """Settings of a conversation, and of the answer to it. None counts as not given."""

        # True: the model is asked to reason first; "low", "medium", "high": also how long.
        thinking: Thinking
        date: Union[str, None]  # today, as "2026-11-23", for templates that ask for it
        # Functions that the model may call, as in OpenAI's API.
        tools: Union[Sequence[Mapping[str, Any]], None]
        tool_choice: Union[Literal["auto", "none", "required"], Mapping[str, Any], None]
        parallel_tool_calls: Union[bool, None]  # False: at most one call


#: {"role": "user", "content": "..."}; an assistant's may have "reasoning_content" and "tool_calls",
#: and a tool's has "tool_call_id". The content is a str, or a list of parts such as
#: {"type": "text", "text": "..."}.
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call of a function."""

    id: str
    name: str
    #: The arguments as the model wrote them, which is the text of a JSON object if error is "".
    arguments_text: str
    #: The place that is wrong, such as "tool_calls[0]: byte 12 is not JSON"; "" if none is.
    error: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments. Raises BadArgument if the model wrote them wrongly."""
        if self.error:
            raise BadArgument(self.error, C.BAD_ARGUMENT)
        found: dict[str, Any] = json.loads(self.arguments_text)
        return found


class Piece(NamedTuple):
    """The part of an answer that a token, or the end, has added."""

    token: int = -1  # -1: none
    text: str = ""
    reasoning: str = ""
    logprobs: tuple[float, list[tuple[int, float]]] | None = None
    calls: Sequence[ToolCall] = ()  # calls that have ended


class End(NamedTuple):
    """The end of an answer."""

    piece: Piece
    finish: str
    n_tokens: int
    message: dict[str, Any] | None  # the message that the answer is


class Said:
    """The parts of an answer that have arrived."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[tuple[float, list[tuple[int, float]]]] = []
        self.calls: list[ToolCall] = []

    def add(self, piece: Piece) -> None:
        if piece.token >= 0:
            self.tokens.append(piece.token)
        if piece.logprobs is not None:
            self.logprobs.append(piece.logprobs)
        if piece.text:
            self.text.append(piece.text)
        if piece.reasoning:
            self.reasoning.append(piece.reasoning)
        self.calls += piece.calls


class Prompt:
    """The tokens of a text, and the options of an answer that continues it."""

    def __init__(self, tokens: Any, n_tokens: int, options: Options):
        self.tokens: Any = tokens
        self.n_tokens = n_tokens
        self.options: Options | None = options
        self.seed = int(options.get("seed"))
        self._with_logprobs = options.get("logprobs") == "true"

    @classmethod
    def of_tokens(cls, model: Model, tokens: list[int], given: Mapping[str, Any]) -> Prompt:
        options = generate_options(with_seed(given), model._handle.pointer)
        return cls(tokens_array(tokens), len(tokens), options)

    def drop(self) -> None:
        """Frees tokens and options, which another object has copied."""
        self.tokens = self.options = None

    def _logprobs(self, token: Any) -> tuple[float, list[tuple[int, float]]] | None:
        if not self._with_logprobs or token.id < 0:
            return None
        return token.logprob, [(one.token, one.logprob) for one in token.top[: token.n_top]]

    def piece(self, token: Any) -> Piece:
        """Takes a pointer to the next token."""
        t = token.contents
        text = ctypes.string_at(t.text, t.text_len).decode() if t.text_len else ""
        return Piece(t.id, text, "", self._logprobs(t))

    def end(self, result: C.Result) -> End:
        return End(Piece(), C.FINISHES.get(result.finish, "none"), result.n_tokens, None)


class ChatPrompt(Prompt):
    """A conversation. The library splits the answer into text, reasoning and calls."""

    def __init__(
        self,
        model: Model,
        messages: str | Sequence[Message],
        chat: Mapping[str, Any],
        given: Mapping[str, Any],
    ):
        fields, rest = grammar_fields(with_seed(given))
        options = generate_options(rest, model._handle.pointer)
        set_conversation(options, chat)
        fields["messages"] = messages_of(messages)
        for name in ("tools", "tool_choice", "parallel_tool_calls"):
            if (value := chat.get(name)) is not None:
                fields[name] = value
        with errors_of_fields():
            self._request = Request(C.REQUEST_CHAT, body_of(fields), options, 0)
            self._request.prepare(model)
        self._n_tools = self._request.info["n_tools"]
        self._n_calls = 0  # calls that have been handed out
        self._in_call = False
        made = Options(self._request.options_pointer(0))
        for name in ("reasoning", "trim_start"):  # the caller's word counts
            if rest.get(name) is not None:
                made.set(name.replace("_", "-"), rest[name], name)
        super().__init__(*self._request.tokens(0), made)

    def drop(self) -> None:
        super().drop()
        self._request.drop_prompts()

    def piece(self, token: Any) -> Piece:
        t = token.contents
        self._request.token(0, token, chunk=False)
        text, reasoning = self._request.part()
        # A token inside a call adds no text, so only such a token can end a call.
        in_call = self._n_tools and (self._in_call or not (text or reasoning))
        return Piece(t.id, text, reasoning, self._logprobs(t), self._new_calls() if in_call else [])

    def _new_calls(self) -> list[ToolCall]:
        """The calls that this token has ended."""
        answer = self._request.answer(0)
        self._in_call = answer["n_ended_calls"] < answer["n_tool_calls"]
        return self._calls_until(answer["n_ended_calls"])

    def _calls_until(self, n: int) -> list[ToolCall]:
        """The calls up to number n that have not been handed out."""
        first, self._n_calls = self._n_calls, n
        return [ToolCall(*self._request.call(0, i)) for i in range(first, n)]

    def end(self, result: C.Result) -> End:
        self._request.end(0, result, 0, chunk=False)
        text, reasoning = self._request.part()
        answer = self._request.answer(0)
        finish = answer["finish_reason"]
        if finish != "tool_calls":  # "context" and "aborted" are lengths to OpenAI
            finish = C.FINISHES.get(result.finish, "none")
        message = json.loads(self._request.response())["choices"][0]["message"]
        calls = self._calls_until(answer["n_tool_calls"])
        piece = Piece(-1, text, reasoning, None, calls)
        return End(piece, finish, result.n_tokens, message)


#: The options of a conversation; the others are those of an answer.
OF_CONVERSATION = ("thinking", "date", "tools", "tool_choice", "parallel_tool_calls")


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of a conversation, and those of an answer."""
    chat = {name: value for name, value in options.items() if name in OF_CONVERSATION}
    return chat, {name: value for name, value in options.items() if name not in OF_CONVERSATION}


def set_conversation(options: Options, chat: Mapping[str, Any]) -> None:
    """Sets the library's options of a conversation."""
    thinking, date = chat.get("thinking"), chat.get("date")
    if thinking is not None:
        wanted = thinking_argument(thinking)
        options.set("thinking", "on" if wanted else "off")
        if isinstance(wanted, str):
            options.set("reasoning-effort", wanted)
    if date is not None:
        text_argument("date", date)
        options.set("date", date)
    if chat.get("parallel_tool_calls") is not None:
        bool_argument("parallel_tool_calls", chat["parallel_tool_calls"])


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def messages_of(messages: Any) -> list[Any]:
    """The list of messages. A text is one message of a user."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not is_list(messages):
        raise TypeError(
            f"messages: found {shown(messages)}, expected a str, or a list of dicts with role and "
            "content"
        )
    return list(messages)


def body_of(fields: Mapping[str, Any]) -> bytes:
    """The JSON text of a request."""

    def other(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if is_list(value):
            return list(value)
        raise TypeError(f"found {shown(value)}, expected a dict, a list, a str or a number")

    members = []
    for name, value in fields.items():
        try:
            text = json.dumps(value, default=other, allow_nan=False, ensure_ascii=False)
            members.append(json.dumps(name).encode() + b":" + text.encode())
        except UnicodeEncodeError as error:
            raise BadArgument(
                f"{name}: found U+{ord(error.object[error.start]):04X}, half of a surrogate pair, "
                "expected whole characters",
                C.BAD_ARGUMENT,
            ) from None
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
    return b"{" + b",".join(members) + b"}"


@contextlib.contextmanager
def errors_of_fields() -> Iterator[None]:
    """Raises the library's refusals of fields as this package's exceptions."""
    try:
        yield
    except Refusal as error:
        # Names of fields become those of arguments; quoted text stays.
        parts = str(error).removeprefix("field ").split('"')
        parts[::2] = [part.replace("body.", "").replace("guided_", "") for part in parts[::2]]
        text = '"'.join(parts)
        raise ERRORS.get(error.riffle_code, Error)(text, error.riffle_code) from None


def chat_tokens(
    model: Model, messages: str | Sequence[Message], chat: Mapping[str, Any]
) -> list[int]:
    """The tokens of a conversation."""
    prompt = ChatPrompt(model, messages, chat, {})
    return list(prompt.tokens[: prompt.n_tokens])


