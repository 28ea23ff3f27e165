"""Fields of requests and answers that all models share."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

# JSON has one type of number, so 3.0 counts as an integer.
Whole = Annotated[int, BeforeValidator(lambda given: int(given) if _whole(given) else given)]
Probability = Annotated[float, Field(ge=0, le=1.000001, description="a probability, up to rounding")]


def _whole(given: Any) -> bool:
    return isinstance(given, float) and given.is_integer()


class Strict(BaseModel):
    """A request that may have no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Read(BaseModel):
    """A word of the input, as the model reads it."""

    word: str
    known: bool
