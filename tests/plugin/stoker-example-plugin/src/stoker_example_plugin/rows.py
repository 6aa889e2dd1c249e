"""A row format: `{"lines": [...]}` is a poem; all of it is trained."""

from typing import Any

from stoker.rows.formats import Text


class Haiku:
    """Three lines."""

    keys = (("lines",),)
    needs_template = False

    def document(self, row: dict[str, Any], *, has_template: bool) -> Text:
        """The lines as one text."""
        if len(row["lines"]) != 3:
            raise ValueError(f"a haiku has 3 lines, not {len(row['lines'])}")
        return Text("\n".join(row["lines"]))


HAIKU = Haiku()
