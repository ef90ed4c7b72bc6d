"""OpenAI's client against `toolkit serve`: conversations, prompts, streams, stops, seeds, limits and errors."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from runs import train

import toolkit
from toolkit.deploy.serving.app import build
from toolkit.deploy.serving.requests import Limits

openai = pytest.importorskip("openai")

FEW = ("train.max_steps=3", "data.max_train_samples=12", "data.max_eval_samples=5", "checkpoint.save_steps=null")
QUESTION = [{"role": "user", "content": "How do I bake bread?"}]


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A run that answers conversations."""
    folder = tmp_path_factory.mktemp("chat") / "run"
    train("language_modeling/smoke_chat", folder, *FEW, "train.learning_rate=0.02", "task.max_new_tokens=12")
    return toolkit.load(folder)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A run that continues texts."""
    folder = tmp_path_factory.mktemp("text") / "run"
    train("language_modeling", folder, *FEW, "task.max_new_tokens=12")
    return toolkit.load(folder)


@pytest.fixture
def client(chat):
    with TestClient(build(chat, "hens", Limits()), base_url="http://127.0.0.1/v1") as server:
        yield openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=server, max_retries=0)


def joined(stream: Any) -> tuple[str, str | None, Any]:
    parts, finish, usage = [], None, None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    return "".join(parts), finish, usage


def test_an_answer_is_that_of_predict(client, chat):
    (expected,) = chat.predict([{"messages": QUESTION}])
    found = client.chat.completions.create(model="hens", messages=QUESTION)
    (choice,) = found.choices
    assert choice.message.content == expected["prediction"] != ""
    assert choice.finish_reason in ("stop", "length")
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.usage.completion_tokens <= 12
    parts = [{"type": "text", "text": QUESTION[0]["content"][:5]}, {"type": "text", "text": QUESTION[0]["content"][5:]}]
    again = client.chat.completions.create(model="hens", messages=[{"role": "user", "content": parts}])
    assert again.choices[0].message.content == expected["prediction"]
    assert [model.id for model in client.models.list()] == ["hens"]


def test_a_stream_has_the_same_text(client):
    whole = client.chat.completions.create(model="hens", messages=QUESTION)
    options = {"include_usage": True}
    stream = client.chat.completions.create(model="hens", messages=QUESTION, stream=True, stream_options=options)
    text, finish, usage = joined(stream)
    assert text == whole.choices[0].message.content
    assert (finish, usage) == (whole.choices[0].finish_reason, whole.usage)


def test_samples_follow_their_seed(client):
    def answer(**more: Any) -> str:
        found = client.chat.completions.create(model="hens", messages=QUESTION, temperature=1.5, **more)
        return found.choices[0].message.content

    assert answer(seed=7) == answer(seed=7)
    assert len({answer(seed=seed) for seed in range(4)}) > 1
    cold = client.chat.completions.create(model="hens", messages=QUESTION, temperature=0)
    assert cold.choices[0].message.content == client.chat.completions.create(
        model="hens", messages=QUESTION
    ).choices[0].message.content  # fmt: skip


def test_texts_end_before_a_stop_and_at_a_limit(client):
    whole = client.chat.completions.create(model="hens", messages=QUESTION).choices[0].message.content
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    found = client.chat.completions.create(model="hens", messages=QUESTION, stop=[stop]).choices[0]
    assert found.message.content == whole[: whole.index(stop)]
    assert found.finish_reason == "stop"
    stream = client.chat.completions.create(model="hens", messages=QUESTION, stop=stop, stream=True)
    assert joined(stream)[:2] == (found.message.content, "stop")
    short = client.chat.completions.create(model="hens", messages=QUESTION, max_tokens=2)
    assert (short.usage.completion_tokens, short.choices[0].finish_reason) == (2, "length")
    assert whole.startswith(short.choices[0].message.content)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"messages": []}, "messages: the conversation has no message"),
        ({"messages": [{"role": "user"}]}, "messages: message 1 has 'role'"),
        ({"messages": QUESTION, "temperature": 9.0}, "temperature: received 9.0, expected 0 to 2"),
        ({"messages": QUESTION, "n": 3}, "n: received 3"),
        ({"messages": QUESTION, "stream_options": "all"}, "stream_options: received 'all'"),
        ({"messages": QUESTION, "stop": [""]}, "stop: expected"),
        ({"messages": QUESTION, "response_format": {"type": "json_object"}}, "response_format: is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "long " * 200}]}, "tokens, and this run reads at most"),
    ],
)
def test_requests_that_cannot_be_answered_are_errors_of_the_client(client, request_, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(model="hens", **request_)
    with pytest.raises(openai.BadRequestError, match="expected a text"):
        client.completions.create(model="hens", prompt=["a", "b"])


def test_prompts_are_continued(text):
    (expected,) = text.predict([{"text": "The river"}])
    with TestClient(build(text, "river", Limits()), base_url="http://127.0.0.1/v1") as server:
        client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=server, max_retries=0)
        found = client.completions.create(model="river", prompt="The river")
        assert found.choices[0].text == expected["prediction"] != ""
        streamed = client.completions.create(model="river", prompt="The river", stream=True)
        assert "".join(event.choices[0].text for event in streamed) == found.choices[0].text
        with pytest.raises(openai.BadRequestError, match="it has no chat template"):
            client.chat.completions.create(model="river", messages=QUESTION)


def test_too_many_requests_are_turned_away_and_late_ones_end(chat):
    with TestClient(build(chat, "hens", Limits(max_queue=0)), base_url="http://127.0.0.1/v1") as server:
        client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=server, max_retries=0)
        with pytest.raises(openai.RateLimitError, match="requests are waiting"):
            client.chat.completions.create(model="hens", messages=QUESTION)
    with TestClient(build(chat, "hens", Limits(timeout=1e-4)), base_url="http://127.0.0.1/v1") as server:
        client = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=server, max_retries=0)
        with pytest.raises(openai.APIStatusError) as late:
            client.chat.completions.create(model="hens", messages=QUESTION)
        assert late.value.status_code in (408, 504)


def test_log_probabilities_of_tokens(client, text):
    found = client.chat.completions.create(model="hens", messages=QUESTION, logprobs=True)
    tokens = found.choices[0].logprobs.content
    assert len(tokens) == found.usage.completion_tokens
    assert all(each.logprob <= 0 for each in tokens)
    with pytest.raises(openai.BadRequestError, match="are not streamed"):
        client.chat.completions.create(model="hens", messages=QUESTION, logprobs=True, stream=True)
    with TestClient(build(text, "hens", Limits()), base_url="http://127.0.0.1/v1") as server:
        other = openai.OpenAI(api_key="none", base_url="http://127.0.0.1/v1", http_client=server, max_retries=0)
        given = other.completions.create(model="hens", prompt="The hen", logprobs=1).choices[0].logprobs
    assert len(given.tokens) == len(given.token_logprobs) == len(given.text_offset)
