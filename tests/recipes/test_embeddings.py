"""The recipe `embeddings`: scores, search, mining, sentence-transformers folders, serving, and what it rejects."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_command
from fastapi.testclient import TestClient
from runs import BY_SPLIT, ROOT, predictions, train, weights

import toolkit
from toolkit.base.errors import ConfigError, DataError
from toolkit.deploy.demo import shown
from toolkit.deploy.search import Corpus, read_corpus
from toolkit.deploy.serving.app import Service, application, build
from toolkit.deploy.serving.requests import Limits

QA = ROOT / "recipes/data/qa"
FEW = (*BY_SPLIT, "train.max_steps=3", "eval.eval_steps=null", "checkpoint.save_steps=null")
PAIRS = (
    "data.columns={text: text, text_pair: text_pair, score: score}", "data.validation_file=null",
    "data.validation_split=0.3",
)  # fmt: skip


def texts(name: str) -> list[tuple[str, str]]:
    """Returns the questions and the paragraphs of the sample rows."""
    nested = json.loads((QA / f"{name}.json").read_text())["data"]
    return [(qa["question"], part["context"]) for each in nested for part in each["paragraphs"] for qa in part["qas"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with prompts and matryoshka lengths."""
    folder = tmp_path_factory.mktemp("embeddings") / "run"
    options = ("task.query_prompt='query: '", "task.document_prompt='passage: '", "task.matryoshka_dims=[16]")
    train("embeddings", folder, *FEW, *options, sizes=("model.from_config.hidden_size=32",))
    return folder


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> Path:
    """A run on scored pairs."""
    folder = tmp_path_factory.mktemp("scored")
    rows = [{"text": f"{a} hay", "text_pair": f"{b} hay", "score": str(abs(a - b))} for a in range(8) for b in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train("embeddings", folder / "run", *FEW, "task.loss=cosent", f"data.train_file={folder / 'pairs.jsonl'}", *PAIRS)
    return folder / "run"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Paragraphs, one of them twice."""
    file = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    documents = list(dict.fromkeys(text for _, text in texts("validation")))
    file.write_text("".join(json.dumps({"context": each}) + "\n" for each in [*documents, documents[0]]))
    return file


def answers(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_scores_are_those_of_sentence_transformers(run):
    """Its own evaluator, on its own embeddings with the run's folder."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    pairs = texts("validation")
    queries = {f"q{k}": query for k, query in enumerate(dict.fromkeys(query for query, _ in pairs))}
    documents = {f"d{k}": each for k, each in enumerate(dict.fromkeys(text for _, text in pairs))}
    names, places = {text: name for name, text in queries.items()}, {text: name for name, text in documents.items()}
    relevant: dict[str, set[str]] = {}
    for query, text in pairs:
        relevant.setdefault(names[query], set()).add(places[text])
    evaluator = InformationRetrievalEvaluator(
        queries, documents, relevant, query_prompt_name="query", corpus_prompt_name="document", map_at_k=[100],
        accuracy_at_k=[1], precision_recall_at_k=[1, 5, 10], mrr_at_k=[10], ndcg_at_k=[10], write_csv=False,
    )  # fmt: skip
    model = library.SentenceTransformer(str(run / "model"), device="cpu")
    theirs = {name.removeprefix("cosine_"): value for name, value in evaluator(model).items()}
    result = json.loads((run / "run.json").read_text())["result"]
    own = {"recall@1": "recall_at_1", "recall@5": "recall_at_5", "recall@10": "recall_at_10", "mrr@10": "mrr_at_10",
           "ndcg@10": "ndcg_at_10", "map@100": "map"}  # fmt: skip
    found = {name: result[f"eval_{each}"] for name, each in own.items()}
    assert found == pytest.approx({name: theirs[name] for name in own}, abs=1e-6)
    assert result["eval_ndcg_at_10_low"] < result["eval_ndcg_at_10"] < result["eval_ndcg_at_10_high"]
    assert result["start_ndcg_at_10"] != result["eval_ndcg_at_10"]
    query = texts("validation")[0][0]
    (record,) = toolkit.load(run).predict([{"question": query}])
    np.testing.assert_allclose(record["embedding"], model.encode(query, prompt_name="query"), atol=1e-6)


def test_the_report_has_the_scores_of_each_length(run):
    text = (run / "report.md").read_text()
    (table,) = re.findall(r"Scores of embeddings that are cut \(validation\)\n\n((?:\|.*\n)+)", text)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    names, short, full = rows[0], rows[2], rows[3]
    result = json.loads((run / "run.json").read_text())["result"]
    assert [short[0], full[0]] == ["16", "32"]
    own = [float(each) for each in full[1:]]
    assert own == pytest.approx([result[f"eval_{name}"] for name in names[1:]], rel=1e-3)
    assert short[1:] != full[1:]


@pytest.mark.fast(1)
@pytest.mark.parametrize("peft", ["none", "lora"])
def test_it_is_exported_as_a_folder_of_sentence_transformers(tmp_path, peft):
    library = pytest.importorskip("sentence_transformers")
    method = (f"model.peft.method={peft}",) if peft != "none" else ()
    pooling = ("task.pooling=cls", "task.normalize=false")
    train("embeddings", tmp_path / "run", *FEW, *method, *pooling, "train.learning_rate=0.01")
    folder = tmp_path / "folder"
    assert run_command("export", tmp_path / "run", "--format", "sentence_transformers", "--output", folder) == 0
    query = texts("validation")[0][0]
    (record,) = toolkit.load(tmp_path / "run").predict([{"question": query}])
    model = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(record["embedding"], model.encode(query), atol=1e-5)
    assert model.similarity_fn_name == "dot"
    card = (folder / "README.md").read_text()
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity" in card
    own = (tmp_path / "run" / "model" / "README.md").read_text()
    assert ("library_name: peft" if peft == "lora" else "library_name: sentence-transformers") in own


def test_other_tasks_have_no_such_folder(tmp_path, capsys):
    train("reviews", tmp_path / "run", *FEW)
    arguments = ("--format", "sentence_transformers", "--output", tmp_path / "folder")
    assert run_command("export", tmp_path / "run", *arguments) != 0
    assert "--format sentence_transformers: " in capsys.readouterr().err
    assert run_command("predict", tmp_path / "run", "--input-text", "good", "--corpus", tmp_path / "docs.csv") != 0
    assert "--corpus: Reviews has no embeddings" in capsys.readouterr().err


def test_predict_ranks_documents_and_writes_embeddings(run, corpus, tmp_path, capsys):
    questions = tmp_path / "questions.csv"
    asked = [query for query, _ in texts("validation")[:5]]
    questions.write_text("question\n" + "\n".join(f'"{each}"' for each in asked) + "\n")
    command = ("predict", run, "--input", questions, "--output")
    assert run_command(*command, tmp_path / "e.npy") == 0
    assert run_command(*command, tmp_path / "e.jsonl") == 0
    matrix = np.load(tmp_path / "e.npy")
    assert matrix.shape == (5, 32)
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(matrix, np.float32([row["embedding"] for row in answers(tmp_path / "e.jsonl")]))
    assert run_command(*command, tmp_path / "r.jsonl", "--corpus", corpus, "--top-k", 3) == 0
    assert "occur again" in capsys.readouterr().out
    ranked = answers(tmp_path / "r.jsonl")
    assert [(row["question"], row["rank"]) for row in ranked] == [(each, k) for each in asked for k in (1, 2, 3)]
    loaded = read_corpus(toolkit.load(run), str(corpus))
    scores = matrix @ loaded.embeddings.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    assert [row["document"] for row in ranked] == [loaded.texts[place] for row in best for place in row]
    assert [row["document_row"] for row in ranked] == [place + 1 for row in best for place in row]
    recorded = {row["anchor"]: row["prediction"] for row in predictions(run)}  # of the same documents
    assert [row["document"] for row in ranked if row["rank"] == 1] == [recorded[each] for each in asked]
    assert run_command("predict", run, "--input-text", asked[0], "--top-k", 2) != 0
    assert "--top-k: has no effect without --corpus" in capsys.readouterr().err


def test_one_file_can_hold_the_documents_and_the_queries(run, tmp_path):
    both = tmp_path / "both.jsonl"
    both.write_text("".join(json.dumps({"question": q, "context": c}) + "\n" for q, c in texts("validation")[:4]))
    assert run_command("predict", run, "--corpus", both, "--input", both, "--output", tmp_path / "r.jsonl") == 0
    documents = {each for _, each in texts("validation")[:4]}
    assert {row["document"] for row in answers(tmp_path / "r.jsonl")} == documents


def test_documents_that_cannot_be_used_follow_the_policy_for_bad_rows(run, tmp_path, capsys):
    file = tmp_path / "docs.jsonl"
    file.write_text("".join(json.dumps({"context": each}) + "\n" for each in ("a farm", "", "a field")))
    opened = toolkit.load(run)
    with pytest.raises(DataError, match="row 2"):
        read_corpus(opened, str(file))
    data = replace(opened.cfg.data, bad_rows="skip", max_bad_rows=0.5)
    found = read_corpus(replace(opened, cfg=replace(opened.cfg, data=data)), str(file))
    assert (found.texts, [*found.rows]) == (["a farm", "a field"], [1, 3])
    assert "1 row skipped that cannot be used" in capsys.readouterr().out


@pytest.mark.slow
def test_mined_negatives_do_not_answer_their_query(run, corpus, tmp_path):
    output = tmp_path / "mined.jsonl"
    command = ("mine", run, "--data", QA / "train.json", "--output")
    assert run_command(*command, output, "--negatives", 3) == 0
    pairs, mined = texts("train"), answers(output)
    assert [(row["anchor"], row["positive"]) for row in mined] == pairs
    owned: dict[str, set[str]] = {}
    for query, text in pairs:
        owned.setdefault(query, set()).add(text)
    assert all(len(row["negative"]) == 3 and not owned[row["anchor"]] & {*row["negative"]} for row in mined)
    assert run_command(*command, tmp_path / "pairs.csv", "--pairs", "--negatives", 1) == 0
    assert (tmp_path / "pairs.csv").read_text().startswith("text,text_pair,label\n")
    assert run_command(*command, tmp_path / "far.jsonl", "--gap", 0.5, "--corpus", corpus) == 0
    assert sum(len(row["negative"]) for row in answers(tmp_path / "far.jsonl")) < sum(
        len(row["negative"]) for row in mined
    )
    folder = tmp_path / "again"
    train("embeddings", folder, *FEW, f"data.train_file={output}", "data.validation_file=null",
          "data.validation_split=0.2", "data.columns={anchor: anchor, positive: positive}")  # fmt: skip
    assert json.loads((folder / "run.json").read_text())["task_state"] == {"negatives": 3}


def test_scored_pairs_have_no_answers_to_mine(scored, tmp_path, capsys):
    pairs = scored.parent / "pairs.jsonl"
    assert run_command("mine", scored, "--data", pairs, "--output", tmp_path / "mined.jsonl") != 0
    assert "do not say which text answers which" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_search_answers_many_clients_as_predict_does(run, corpus):
    opened = toolkit.load(run)
    real = read_corpus(opened, str(corpus))
    random = np.random.default_rng(0)
    vectors = random.normal(size=(20_000, real.embeddings.shape[1])).astype(np.float32)
    many = Corpus([str(k) for k in range(len(vectors))], range(1, len(vectors) + 1), vectors)
    asked = [query for query, _ in texts("validation")]
    with TestClient(build(opened, "the run", Limits(), many)) as server:

        def search(number: int) -> Any:
            rows = [{"question": asked[number % len(asked)]}]
            return server.post("/search?top_k=4", json={"rows": rows}).json()["results"][0]

        with ThreadPoolExecutor(50) as clients:
            found = [*clients.map(search, range(50))]
        embedded = server.post("/embed", json={"rows": [{"question": each} for each in asked]}).json()["predictions"]
        assert server.post("/search?top_k=0", json={"rows": [{"question": "a"}]}).status_code == 422
        page = server.get("/docs").text
    queries = np.array([each["embedding"] for each in embedded], dtype=np.float32)
    expected = [[each["document"] for each in ranking] for ranking in many.ranking(queries, 4)]
    assert [[each["document"] for each in ranking] for ranking in found] == [
        expected[number % len(asked)] for number in range(50)
    ]
    assert "20,000 documents" in page
    with TestClient(build(opened, "the run", Limits())) as server:
        assert server.post("/search", json={"rows": [{"question": "a"}]}).status_code == 404


def test_the_page_of_a_demo_finds_documents(run, corpus):
    opened, question = toolkit.load(run), texts("validation")[0][0]
    service = Service(opened, "the run", Limits(), read_corpus(opened, str(corpus)))
    with TestClient(application(service)):
        (found,) = asyncio.run(service.found([{"question": question}]))
    recorded = {row["anchor"]: row["prediction"] for row in predictions(run)}
    assert found["prediction"] == recorded[question]
    best, table = shown(found, ("prediction", "documents"))
    assert best == found["prediction"]
    assert table["headers"] == ["rank", "score", "document", "document_row"]
    assert len(table["data"]) == 10


def test_equal_scores_are_in_the_order_of_the_documents():
    corpus = Corpus(["a", "b", "c", "d"], [1, 2, 3, 4], np.float32([[1], [2], [1], [2]]))
    assert [places.tolist() for places, _ in corpus.best(np.float32([[1], [-1]]), 3)] == [[1, 3, 0], [0, 2, 1]]


def test_scored_pairs_have_correlations(scored):
    from scipy.stats import pearsonr, spearmanr

    rows, result = predictions(scored), json.loads((scored / "run.json").read_text())["result"]
    given = [row["prediction"] for row in rows], [row["score"] for row in rows]
    assert result["eval_spearman"] == pytest.approx(spearmanr(*given).statistic)
    assert result["eval_pearson"] == pytest.approx(pearsonr(*given).statistic)
    (record,) = toolkit.load(scored).predict([{"text": "1 hay"}])
    assert len(record["embedding"]) == 32


@pytest.mark.slow
@pytest.mark.usefixtures("forked_trials")
def test_scored_pairs_can_be_ranked(scored, tmp_path):
    config = [f"data.train_file={scored.parent / 'pairs.jsonl'}", *PAIRS, "task.loss=cosine", "task.ranking=true"]
    train("embeddings", tmp_path / "run", *FEW, *config)
    result, rows = json.loads((tmp_path / "run" / "run.json").read_text())["result"], predictions(tmp_path / "run")
    precisions = []
    for text in {row["text"] for row in rows}:
        own = sorted((row for row in rows if row["text"] == text), key=lambda row: -row["prediction"])
        ranks = [rank for rank, row in enumerate(own, start=1) if row["score"] > 3.5]
        if 0 < len(ranks) < len(own):
            precisions.append(sum(found / rank for found, rank in enumerate(ranks, start=1)) / len(ranks))
    assert result["eval_map"] == pytest.approx(sum(precisions) / len(precisions))
    assert all(len([row for row in rows if row["text"] == text]) == 8 for text in {row["text"] for row in rows})
    assert (
        run_command("baseline", "embeddings", "--config", "smoke", *config, "--no-model", "--output", tmp_path / "b")
        == 0
    )
    found = json.loads((tmp_path / "b" / "baseline.json").read_text())["baselines"]
    assert [each["name"] for each in found] == ["cosine of TF-IDF", "BM25"]
    assert all(0 < each["scores"]["eval_map"] <= 1 for each in found)


@pytest.mark.slow
def test_the_loss_of_an_evaluation_is_that_of_windows_whatever_its_batches(tmp_path):
    losses = []
    for size in (3, 48):
        batch = f"eval.per_device_eval_batch_size={size}"
        losses.append(train("embeddings", tmp_path / str(size), *FEW, batch).evaluations["validation"].metrics["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_rows_with_one_anchor_stay_on_one_side(tmp_path):
    rows = [{"anchor": f"q{number // 3}", "positive": f"p{number}"} for number in range(60)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ("data.columns={anchor: anchor, positive: positive}", f"data.train_file={file}", "data.validation_file=null",
           "data.validation_split=0.3")  # fmt: skip
    train("embeddings", tmp_path / "run", *FEW, *own)
    kept = [row["positive"] for row in predictions(tmp_path / "run")]
    assert all(kept.count(f"p{first + k}") == kept.count(f"p{first}") for first in range(0, 60, 3) for k in (1, 2))
    assert kept


@pytest.mark.usefixtures("forked_trials")
def test_baselines_rank_by_words(tmp_path):
    assert run_command("baseline", "embeddings", "--config", "smoke", "--output", tmp_path) == 0
    found = json.loads((tmp_path / "baseline.json").read_text())
    assert {"BM25", "cosine of TF-IDF"} <= {each["name"] for each in found["baselines"]}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no anchor": ({"anchor": " ", "positive": "a"}, "column 'anchor' is empty"),
    "no positive": ({"anchor": "a", "positive": None}, "column 'positive' is empty"),
    "a number": ({"anchor": 3, "positive": "a"}, "column 'anchor' holds 3, not text"),
    "negatives": ({"anchor": "a", "positive": "b", "negative": ["c", ""]}, "the negative is missing"),
    "no negative": ({"anchor": "a", "positive": "b"}, "column 'negative' is empty"),
    "no score": ({"text": "a", "text_pair": "b", "score": "high"}, "column 'score' holds 'high', not a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(tmp_path, case):
    row, message = BAD[case]
    loss = {"no negative": "triplet", "no score": "cosine"}.get(case, "multiple_negatives")
    good = {"text": "x", "text_pair": "y", "score": 1} if case == "no score" else {
        "anchor": "x", "positive": "y", "negative": "z"
    }  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in (good, row)))
    columns = {name: name for name in ("text", "text_pair", "score") if name in row} or {"anchor": "anchor", "positive":
                                                                                         "positive"}  # fmt: skip
    own = (f"task.loss={loss}", f"data.train_file={file}", "data.validation_file=null", "data.validation_split=0",
           f"data.columns={json.dumps(columns)}")  # fmt: skip
    with pytest.raises((DataError, ConfigError), match=message):
        train("embeddings", tmp_path / "run", *FEW, *own)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["task.margin=0.5"], "task.margin: has no effect with task.loss "),
        (["task.loss=cosine", "task.temperature=0.1"], "task.temperature: has no effect with task.loss "),
        (["task.loss=cosine", "task.score_range=[5, 1]"], "task.score_range: received"),
        (["task.matryoshka_dims=[128]"], "task.matryoshka_dims: received 128"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        train("embeddings", tmp_path / "run", *FEW, *settings)


def test_weights_that_are_not_read_are_saved_as_they_were(tmp_path):
    train("embeddings", tmp_path / "one", *FEW, "train.weight_decay=0.5")
    train("embeddings", tmp_path / "two", *FEW, "train.weight_decay=0.5", "train.max_steps=1")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert np.array_equal(one["pooler.dense.weight"], two["pooler.dense.weight"])
    assert not np.array_equal(one["embeddings.word_embeddings.weight"], two["embeddings.word_embeddings.weight"])
