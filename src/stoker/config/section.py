"""What every section of a run file is: frozen, and without unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NonEmpty = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A part of the run file; the docstrings of its fields are the reference page."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, strict=False, allow_inf_nan=False
    )
