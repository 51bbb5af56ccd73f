"""Markdown of a person as HTML that does nothing but show text.

Raw HTML stays text. A link may lead to http, https or an address of this server (one slash); all others stay text. An
image is never fetched: it becomes a link with its description. The page's policy would stop all of this once more.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

_OWN = re.compile(r"(?:/(?![/\\])|[?#])[^\\]*")
_HTTP = re.compile(r"https?://[^/\\?#@]+(?:[/?#].*)?", re.IGNORECASE)


def rendered(text: str, below: int = 1) -> Markup:
    """The text as HTML; safe whatever it holds. below: the level of the heading that it stands under."""
    return Markup(_parser().render(text, {"below": below}))


def allowed(address: str) -> bool:
    """Whether a link may lead there: http and https without a user name, or this server."""
    return bool(_OWN.fullmatch(address) or _HTTP.fullmatch(address))


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    made.validateLink = allowed  # type: ignore[assignment, method-assign]
    made.add_render_rule("image", _image)
    made.add_render_rule("link_open", _link)
    for cell in ("th", "td"):  # without the alignment, which would be an inline style
        made.add_render_rule(f"{cell}_open", lambda self, tokens, i, options, env: f"<{tokens[i].tag}>")
    made.core.ruler.push("outline", _outline)
    return made


def _outline(state: Any) -> None:
    """The text's headings stand below the page's own, and none skips a level, whatever signs it begins with."""
    above: list[int] = []
    below = state.env["below"]
    for token in state.tokens:
        if token.type == "heading_open":
            level = int(token.tag[1])
            while above and above[-1] >= level:
                above.pop()
            above.append(level)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, below + len(above))}"


def _link(self: Any, tokens: Any, i: int, options: Any, env: Any) -> str:
    tokens[i].attrSet("rel", "noopener noreferrer nofollow")
    return str(self.renderToken(tokens, i, options, env))


def _image(self: Any, tokens: Any, i: int, options: Any, env: Any) -> str:
    said = self.renderInlineAsText(tokens[i].children or [], options, env) or "image"
    template = Markup('<a href="{}" rel="noopener noreferrer nofollow">{}</a>')
    return str(template.format(tokens[i].attrGet("src"), f"image: {said}"))
