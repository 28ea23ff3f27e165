"""What requests and answers are made of, whatever the model."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# JSON has one kind of number: 3.0 is a whole one.
Whole = Annotated[int, BeforeValidator(lambda given: int(given) if _whole(given) else given)]
Probability = Annotated[float, Field(ge=0, le=1.000001, description="a probability, up to rounding")]


def _whole(given: Any) -> bool:
    return isinstance(given, float) and given.is_integer()


class Strict(BaseModel):
    """Nothing but the fields it has."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Read(BaseModel):
    """A word of what was given, as the model reads it."""

    word: str
    known: bool
