"""Documents: texts that are read once and asked about often."""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any

from . import _structs as C
from ._answer import Answer
from ._library import (
    BadArgument,
    BadSession,
    Path,
    ProgressCallback,
    Unsupported,
    check,
    lib,
    shown,
    str_argument,
)
from ._options import Thinking, thinking_argument
from ._prompt import ChatPrompt, Message, Prompt, is_list, messages_of, set_conversation
from ._settings import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from . import Context
    from ._options import GenerateOptions


def document_text(text: Any) -> None:
    """Refuses values that are no text, with a hint at how to make them text."""
    if isinstance(text, str):
        return
    found, hint = shown(text), ""
    if isinstance(text, os.PathLike):
        hint = "; use path.read_text()"
    elif hasattr(text, "read"):
        hint = "; use file.read()"
    elif isinstance(text, (bytes, bytearray)):
        hint = "; use text.decode()"
    if isinstance(text, os.PathLike) or hasattr(text, "read"):
        kind = type(text).__name__
        found = f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    raise TypeError(f"text: found {found}, expected str (the text itself{hint})")


class Document:
    """A text that is read once and asked about often. Model.read makes one.

    Each question follows the text, in one message if the model has a chat template. Answers do
    not depend on earlier questions. A conversation of several turns about it is a list of messages,
    which chat takes."""

    def __init__(
        self,
        context: Context,
        text: str,
        *,
        system: str = "",
        thinking: Thinking = None,
        progress: ProgressCallback | None = None,
    ):
        self._describe(context, text, system, bool(context.model.info.chat_template_name), thinking)
        self._session = context.session()
        self._session.prefill(self._beginning(), progress=progress)

    def _describe(
        self, context: Context, text: str, system: str, message: bool, thinking: Thinking
    ) -> None:
        document_text(text)
        str_argument("system", system)
        if thinking is not None:
            thinking_argument(thinking)
        if not text:
            raise BadArgument("text: found an empty document, expected text", C.BAD_ARGUMENT)
        if system and not message:
            raise BadArgument(
                "system: found a text, expected none: the model has no chat template; "
                "Model(chat_template=...) names one",
                C.BAD_ARGUMENT,
            )
        self.context = context
        #: The document.
        self.text = text
        self._system, self._message, self._thinking = system, message, thinking

    def _with_question(self, question: str) -> str:
        document, asked = self.text.encode(), question.encode()
        text, n = ctypes.create_string_buffer(len(document) + 1 + len(asked)), ctypes.c_size_t()
        code = lib.riffle_document_question(
            document, len(document), asked, len(asked), text, len(text), ctypes.byref(n)
        )
        check(code, None)
        return text.raw[: n.value].decode()

    def _beginning(self) -> list[int]:
        """The tokens that all questions have in common, as `riffle read` finds them."""
        model, document, options = self.context.model, self.text.encode(), Options()
        set_conversation(options, {"thinking": self._thinking})
        return model._filled_tokens(
            lambda tokens, capacity, n: lib.riffle_document_tokens(
                model._handle.pointer,
                document,
                len(document),
                self._system.encode(),
                self._message,
                options.pointer,
                tokens,
                capacity,
                n,
            ),
            len(document) + len(self._system) + 64,
        )

    @classmethod
    def load(
        cls,
        context: Context,
        path: Path,
        *,
        thinking: Thinking = None,
        progress: ProgressCallback | None = None,
    ) -> Document:
        """A document that Document.save or `riffle read` has kept."""
        session = context.load(path, progress=progress)
        try:
            kept = json.loads(session.data)
            if kept["riffle"] != 1 or kept["kind"] != "document":
                raise KeyError(kept["kind"])
            text, system, message = kept["document"], kept["system"], kept["message"]
        except (ValueError, KeyError, TypeError):
            session.close()
            raise BadSession(
                f"{os.fspath(path)}: found a session without a document, expected a file of "
                "Document.save or riffle read; Context.load opens other sessions",
                C.BAD_SESSION,
            ) from None
        document = cls.__new__(cls)
        document._describe(context, text, system, message, thinking)
        document._session = session
        return document

    @property
    def n_tokens(self) -> int:
        """Tokens that were read."""
        return self._session.n_tokens

    def ask(
        self,
        question: str,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answers a question about the document."""
        str_argument("question", question)
        if self._message:
            return self.chat(question, progress=progress, **options)
        tokens = self.context.model.tokenize(self._with_question(question))
        return self._answer(Prompt.of_tokens(self.context.model, tokens, options), progress)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Answers a conversation about the document, as Model.chat does. The first message is a
        user's, and the document goes in front of it. Only the tokens behind the document are
        read."""
        if not self._message:
            raise Unsupported(
                "chat: found a document that was read as plain text, expected one that was read as a "
                "message, with a chat template; ask continues plain text",
                C.UNSUPPORTED,
            )
        asked = messages_of(messages)
        if asked:
            asked[0] = self._first(asked[0])
        if self._system:
            asked.insert(0, {"role": "system", "content": self._system})
        prompt = ChatPrompt(self.context.model, asked, {"thinking": self._thinking}, options)
        return self._answer(prompt, progress)

    def _first(self, message: Any) -> Any:
        """The first message, with the document in front of it."""
        try:
            role, content = message["role"], message["content"]
        except (TypeError, KeyError):
            return message  # the library names what is wrong
        if role != "user":
            raise BadArgument(
                f"messages[0].role: found {shown(role)}, expected 'user': the document goes in "
                "front of this message; read(text, system=...) takes a system message",
                C.BAD_ARGUMENT,
            )
        if isinstance(content, str):
            return {**message, "content": self._with_question(content)}
        if is_list(content):  # parts become lines
            return {**message, "content": [{"type": "text", "text": self._text_part()}, *content]}
        return message

    def _text_part(self) -> str:
        """The document as a part of a content. The library puts a line break after it."""
        return self._with_question("")[:-1]

    def _answer(self, prompt: Prompt, progress: ProgressCallback | None) -> Answer:
        try:
            session, own = self._session.fork(), True
        except (
            Unsupported
        ):  # selectors that cannot fork: the document's session goes back and forth
            session, own = self._session, False
        return Answer(session, prompt, progress, close_session=own)

    def save(self, path: Path, *, progress: ProgressCallback | None = None) -> None:
        """Saves the document in a file that only its owner can read, for Model.load_document and
        `riffle run --session`."""
        data = {
            "riffle": 1,
            "kind": "document",
            "message": self._message,
            "system": self._system,
            "document": self.text,
        }
        self._session.save(
            path, data=json.dumps(data, ensure_ascii=False).encode(), progress=progress
        )

    def close(self) -> None:
        """Frees the session of the document."""
        self._session.close()

    def __enter__(self) -> Document:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
