"""What is trained in the chat templates of models, and that a model which has learned its answers gives exactly these.

In predict, over HTTP, on the page of a demo, and by the script of an export.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from exports import exported, script_answers, write_rows
from fastapi.testclient import TestClient
from runs import train

import toolkit
from toolkit.deploy.demo import shown
from toolkit.deploy.serving.app import Service, application, build
from toolkit.deploy.serving.requests import Limits

IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
ROLES = "{% for m in messages %}{% if m.role == 'user' %}USER{% else %}ANSWER{% endif %}{% endfor %}"
EOS = "{{ eos_token }}"


def by_role(user: str, answer: str, ask: str = "") -> str:
    prompt = "{% if add_generation_prompt %}" + ask + "{% endif %}" if ask else ""
    return ROLES.replace("USER", user).replace("ANSWER", answer) + prompt


CONTENT = "{{ m.content }}"
MARKED = "{% generation %}" + CONTENT + EOS + "{% endgeneration %}"
TEMPLATES = {
    "chatml": IM + ASK,
    "chatml without a prompt": IM,
    "chatml with a system message": "<|im_start|>system\nBe brief.<|im_end|>\n" + IM + ASK,
    "chatml, answers enclosed": IM.replace(CONTENT + "<|im_end|>", "{% if m.role == 'assistant' %}{% generation %}"
        + CONTENT + "<|im_end|>{% endgeneration %}{% else %}" + CONTENT + "<|im_end|>{% endif %}") + ASK,
    "eos behind answers": by_role("<|user|>" + CONTENT + "\n", "<|assistant|>" + CONTENT + EOS + "\n", "<|assistant|>"),
    "eos behind all": by_role("<|user|>" + CONTENT + EOS, "<|assistant|>" + CONTENT + EOS, "<|assistant|>"),
    "answers enclosed": by_role("<|user|>" + CONTENT + "\n", "<|assistant|>" + MARKED, "<|assistant|>"),
    "llama 2": by_role("[INST] " + CONTENT + " [/INST]", " " + CONTENT + " " + EOS),
    "mistral": by_role("[INST]" + CONTENT + "[/INST]", CONTENT + EOS),
    "llama 3": IM.replace("<|im_start|>{{ m.role }}\n", "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n")
        .replace("<|im_end|>\n", "<|eot_id|>")
        + "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "gemma": "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
        "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    "phi": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "zephyr": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}" + EOS + "\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "plain words": by_role("Human: " + CONTENT + "\n\n", "Assistant: " + CONTENT + EOS + "\n\n", "Assistant: "),
    "alpaca": by_role("### Instruction:\n" + CONTENT + "\n\n", "### Response:\n" + CONTENT + EOS + "\n\n",
        "### Response:\n"),
    "a text ends answers": by_role("Q: " + CONTENT + "\n", "A: " + CONTENT + "\n###\n", "A: "),
    "vicuna": by_role("USER: " + CONTENT + " ", "ASSISTANT: " + CONTENT + EOS, "ASSISTANT: "),
    "command": by_role("<|USER_TOKEN|>" + CONTENT + "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>" + CONTENT
        + "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    "numbered": "{% for m in messages %}[{{ loop.index }}] {{ m.role }}: {{ m.content }}" + EOS + "\n{% endfor %}"
        "{% if add_generation_prompt %}[{{ messages | length + 1 }}] assistant: {% endif %}",
    "begins with bos": "{{ bos_token }}" + by_role("<|user|>" + CONTENT, "<|assistant|>" + CONTENT + EOS,
        "<|assistant|>"),
}  # fmt: skip
TALKS = [
    ("When is hay cut?", "In June, on a dry day."),
    ("Do ducks eat slugs?", "Yes \U0001f986, many."),
    ("How many ewes?", "12"),
]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=() if place in (0, 7) else pytest.mark.slow)
                                        for place, name in enumerate(TEMPLATES)])  # fmt: skip
def run(request, tmp_path_factory):
    """A run that has learned its three answers by heart."""
    folder = tmp_path_factory.mktemp("answers")
    rows = [
        {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        for one, other in TALKS
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train(
        "language_modeling/smoke_chat", folder / "run", f"data.train_file={folder / 'rows.jsonl'}",
        "data.validation_file=null", "data.validation_split=0", f"task.chat_template={TEMPLATES[request.param]}",
        "task.prompts=null", "train.max_steps=120", "train.learning_rate=0.005",
        "train.lr_scheduler_type=constant", "train.warmup_steps=0",
        "eval.eval_steps=null", "checkpoint.save_steps=null", sizes=("train.global_batch_size=3",
        "train.per_device_train_batch_size=3", "train.gradient_accumulation_steps=null"),
    )  # fmt: skip
    return folder / "run"


@pytest.mark.fast(1)
def test_every_way_to_ask_gives_exactly_the_trained_answers(run, tmp_path):
    opened = toolkit.load(run)
    rows = [{"messages": [{"role": "user", "content": question}]} for question, _ in TALKS]
    expected = [answer for _, answer in TALKS]
    assert [record["prediction"] for record in opened.predict(rows)] == expected
    with TestClient(build(opened, "hens", Limits())) as server:
        found = server.post("/predict", json={"rows": rows}).json()["predictions"]
        assert [each["prediction"] for each in found] == expected
        for row, answer in zip(rows, expected, strict=True):
            said = server.post("/v1/chat/completions", json=row).json()["choices"][0]
            assert (said["message"]["content"], said["finish_reason"]) == (answer, "stop")
    service = Service(opened, "hens", Limits())
    with TestClient(application(service)):
        answers = asyncio.run(service.answers(rows))
        assert [shown(each, opened.task.answer_columns)[0] for each in answers] == expected
    (tmp_path / "zip").mkdir()
    file = write_rows(tmp_path / "rows.csv", [{"messages": question} for question, _ in TALKS])
    found_rows = script_answers(exported(run, tmp_path / "zip"), file)
    assert [row["prediction"] for row in found_rows] == expected
