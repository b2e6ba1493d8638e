"""Messages of a conversation, in the forms that chat takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import _structs as C
from ._library import BadArgument, shown

#: {"role": "user", "content": "..."}, and "reasoning_content" if a message has it. The content
#: is a str, or a list of parts such as {"type": "text", "text": "..."}.
Message = Mapping[str, Any]


def is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def part_text(at: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise TypeError(f"{at}: found {shown(part)}, expected a dict with type and text")
    if part.get("type") != "text":
        found = f"the type {shown(part['type'])}" if "type" in part else "no type"
        raise BadArgument(f"{at}: found {found}, expected the type 'text'", C.BAD_ARGUMENT)
    text = part.get("text")
    if not isinstance(text, str):
        found = shown(text) if "text" in part else "no text"
        raise BadArgument(f"{at}.text: found {found}, expected a str", C.BAD_ARGUMENT)
    return text


def content_text(at: str, content: Any) -> str:
    """The text of a content. Each part becomes a line, as in riffle batch."""
    if isinstance(content, str):
        return content
    if not is_list(content) or not content:
        raise BadArgument(
            f"{at}: found {shown(content)}, expected a str or a list of parts of type text",
            C.BAD_ARGUMENT,
        )
    return "\n".join(part_text(f"{at}[{i}]", part) for i, part in enumerate(content))


def messages_of(messages: Any) -> list[dict[str, Any]]:
    """The messages of a conversation, with texts as contents. A text is one message of a user."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not is_list(messages):
        raise TypeError(
            f"messages: found {shown(messages)}, expected a str, or a list of dicts with role and "
            "content"
        )
    out = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(
                f"messages[{i}]: found {shown(message)}, expected a dict with role and content"
            )
        if not isinstance(message.get("role"), str):
            raise BadArgument(
                f"messages[{i}].role: found {shown(message.get('role'))}, expected a str",
                C.BAD_ARGUMENT,
            )
        content = content_text(f"messages[{i}].content", message.get("content"))
        out.append({**message, "content": content})
    return out


def continued_text(messages: Sequence[Message], reasoning_end: str) -> str:
    """Returns the text that an answer continues: a last message of the assistant, without the
    reasoning that it may begin with."""
    for message in reversed(messages):
        if message["role"] != "assistant":
            break
        if message["content"].strip():
            text: str = message["content"]
            if reasoning_end and reasoning_end in text:
                text = text[text.rindex(reasoning_end) + len(reasoning_end) :].lstrip()
            return text
    return ""
