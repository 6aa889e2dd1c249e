"""`Fact`: an entry of a table of facts, frozen and without unknown fields."""

from pydantic import BaseModel, ConfigDict


class Fact(BaseModel):
    """One entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")
