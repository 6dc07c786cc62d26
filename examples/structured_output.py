"""An answer that is a pydantic model for certain: ``python examples/structured_output.py model.gguf``."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

import ggfw


class Review(BaseModel):
    """What is to be read out of a text."""

    model_config = ConfigDict(
        extra="forbid"
    )  # else JSON schema allows further properties, and so might the model

    mood: Literal["good", "bad", "mixed"]
    stars: int = Field(ge=1, le=5)


def main(model: ggfw.Model, text: str = "The soup was cold, but the waiter sang beautifully.") -> Review:
    """Read a review; the schema of the class leaves the model no other answer."""
    question = f"What does this review say?\n\n{text}"
    result = model.chat([ggfw.user(question)], schema=Review.model_json_schema(), max_tokens=200)
    review = Review.model_validate_json(result.text)
    print(review)
    return review


if __name__ == "__main__":
    with ggfw.load(sys.argv[1]) as loaded:
        main(loaded)
