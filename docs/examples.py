"""Examples in docstrings, shown as code: Markdown would take ``>>>`` for a quotation."""

import re
from typing import Any

from griffe import Extension, Object

# An example: a line that begins with >>>, and what follows it up to a blank line.
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Examples(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            fenced = r"```pycon\n\g<0>\n```"
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)
