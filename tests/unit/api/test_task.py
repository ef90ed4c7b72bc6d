"""Tasks derive from one class, which finds misspelt members, and recipes of former versions get all changes at once."""

from __future__ import annotations

import re

import pytest
from rows_task import RowsTask
from runs import ROOT

from toolkit.api.task import MEMBERS, Task
from toolkit.base.errors import InputError
from toolkit.recipe import FORMER, load_task_type, recipe_names

OLD = re.compile(
    r"from toolkit\.(api\.task|config\.(column|rule)|tasks\.label_names|metrics\.quality)\b|class Reviews:"
)
"""Lines of the former recipe that must change."""


@pytest.mark.parametrize(
    ("name", "member"),
    [("count_item", "count_items"), ("colums", "columns"), ("preproces", "preprocess"), ("anwser", "answer")],
)
def test_a_public_name_that_is_close_to_a_member_is_an_error(name, member):
    with pytest.raises(TypeError, match=rf"^Own\.{name} is no member of a task; did you mean {member}\?$"):
        type("Own", (Task,), {name: lambda self: None})


def test_other_names_are_free_and_so_are_those_of_a_base_class():
    base = type("Base", (Task,), {"label_of": None, "_count_item": None, "language": None})
    assert type("Own", (base,), {"language": "en", "count_items": None}).count_items is None


def test_members_that_a_recipe_overrides_are_known():
    class Own(RowsTask):
        columns: dict = {}  # noqa: RUF012
        schema = check_row = None

        def learn(self, rows):
            pass

    found = {name for name in MEMBERS if Own().has(name) and name not in vars(RowsTask)}
    assert found == {"learn", "columns", "schema", "check_row"}
    assert {"forward", "loss_sum", "count_items", "columns", "modality", "state"} <= MEMBERS


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipes_define_all_that_is_abstract(recipe):
    task_type = load_task_type(recipe)
    assert issubclass(task_type, Task)
    assert not task_type.__abstractmethods__


def test_a_recipe_of_a_former_version_gets_all_changes_in_one_error():
    file = ROOT / "tests/data/reviews_of_0_1.py"
    with pytest.raises(InputError) as caught:
        load_task_type(file)
    first, *changes = str(caught.value).split("\n  - ")
    assert first.startswith(f"{file}: written for an earlier version")
    numbered = list(enumerate(file.read_text(encoding="utf-8").splitlines(), 1))
    old = [number for number, line in numbered if OLD.match(line.strip())]
    assert [int(change.split()[1].rstrip(":")) for change in changes] == old
    assert len(old) == 6
    assert changes[-1].endswith("class Reviews: now class Reviews(Task), from toolkit.api.task")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("TASK = 3", "TASK must be a class that derives from toolkit.api.task.Task, received 3"),
        (
            "from toolkit.api.task import Task\nclass A(Task):\n    columns = {}\nTASK = A",
            "A lacks Options, auto_model",
        ),
    ],
)
def test_what_is_no_task_or_half_of_one_is_an_error(tmp_path, text, problem):
    file = tmp_path / "own.py"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(problem)):
        load_task_type(file)


def test_the_docs_list_where_former_names_are():
    text = (ROOT / "docs/python_reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`toolkit\..*?) \| .*?`(toolkit\.[\w.]+)`", text, re.M)
    listed = {
        name: now.removesuffix(".Task") for names, now in rows for name in re.findall(r"`(toolkit\.[\w.]+)`", names)
    }
    assert listed == FORMER
