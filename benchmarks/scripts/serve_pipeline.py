"""A text classifier behind FastAPI, as tutorials write it: a pipeline, and an endpoint that answers one text.

FastAPI runs the endpoint in threads, of which each has a forward pass of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline

app = FastAPI()
classify = pipeline("text-classification", model=sys.argv[1], device="cpu", truncation=True)


class Review(BaseModel):
    """What is sent."""

    text: str


@app.post("/predict")
def predict(review: Review) -> dict[str, Any]:
    """Returns the label of a text, and its score."""
    return classify(review.text)[0]


if __name__ == "__main__":
    uvicorn.run(app, port=0, access_log=False)
