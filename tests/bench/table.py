"""Tables, as text or as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["Table"]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
      title: what it is about.
      header: names of the columns.
      rows: cells; the first column stands left, the others right.
      note: how to read it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str

    def render(self, *, markdown: bool) -> str:
        """The table as text, or as Markdown.

        Example:
          >>> print(Table("Sums", ("a", "b"), [("x", "1")], "Of two.").render(markdown=True))
          ### Sums
          <BLANKLINE>
          | a | b |
          |:--|--:|
          | x | 1 |
          <BLANKLINE>
          Of two.
        """
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [
            [cell.ljust(width) if index == 0 else cell.rjust(width) for index, (cell, width) in enumerate(pairs)]
            for pairs in (list(zip(cells, widths, strict=True)) for cells in (self.header, *self.rows))
        ]
        if markdown:
            rule = "|".join(
                ":" + "-" * (width + 1) if index == 0 else "-" * (width + 1) + ":" for index, width in enumerate(widths)
            )
            table = [f"| {' | '.join(cells)} |" for cells in lines]
            return "\n".join([f"### {self.title}", "", table[0], f"|{rule}|", *table[1:], "", self.note])
        table = ["  ".join(cells).rstrip() for cells in lines]
        return "\n".join([self.title, "", table[0], "-" * max(map(len, table)), *table[1:], "", self.note])
