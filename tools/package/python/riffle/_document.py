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
    shown,
    str_argument,
)
from ._options import Thinking, reasoning_of, thinking_argument

if TYPE_CHECKING:
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
    not depend on earlier questions."""

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
                "system: the model has no chat template; Model(chat_template=...) " "names one",
                C.BAD_ARGUMENT,
            )
        self.context = context
        #: The document.
        self.text = text
        self._system, self._message, self._thinking = system, message, thinking
        self._inside = ctypes.c_bool()  # true if the last prompt ended inside of reasoning

    def _prompt(self, question: str) -> list[int]:
        text = self.text.rstrip("\r\n") + "\n" + question
        if not self._message:
            return self.context.model.tokenize(text)
        messages = [{"role": "system", "content": self._system}] if self._system else []
        return self.context.model.chat_tokens(
            messages + [{"role": "user", "content": text}],
            thinking=self._thinking,
            _inside=self._inside,
        )

    def _beginning(self) -> list[int]:
        """The tokens that all questions have in common, as `riffle read` finds them."""
        prompts = [self._prompt(question) for question in ("What", "1", "\u00bf", "the")]
        return list(os.path.commonprefix(prompts))

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
                f"{os.fspath(path)}: expected a document of Document.save or riffle "
                "read; Context.load opens other sessions",
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
        tokens = self._prompt(str_argument("question", question))
        options.setdefault("trim_start", self._message)
        try:
            session, own = self._session.fork(), True
        except (
            Unsupported
        ):  # selectors that cannot fork: the document's session goes back and forth
            session, own = self._session, False
        if self._message:
            options = {"reasoning": reasoning_of(self._inside.value, self._thinking), **options}
        return Answer(session, tokens, dict(options), progress, close_session=own)

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
