"""Job scripts for Slurm, run with stand-ins for Slurm's commands."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import run_command
from fake_slurm import REQUEUED, cancel, end_jobs, free_jobs, options_of, programs, submit, warn
from runs import ROOT, assert_same_weights

from toolkit.base.errors import InputError
from toolkit.lab.slurm import Job, lead_of, seconds_of, shown_time
from toolkit.lab.slurm import script as text_of

CONFIG = ["reviews", "--config", f"{ROOT}/recipes/configs/reviews/smoke.yaml"]
SAVE = "mkdir -p outputs/reviews-smoke{,/seed-43}/checkpoints/step-$RANDOM"
"""Makes a checkpoint where the smoke configuration, and the second task of an array, have them."""
SAVES = f"trap 'sleep 1; {SAVE}; echo saved; exit %s' TERM\necho ready\nwhile true; do sleep .1; done"
"""What a program does that saves when it is told to stop, and ends with an exit code."""
ECHO = 'echo "$MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS $TORCH_ELASTIC_SHUTDOWN_TIMEOUT $*"'
"""What a program in place of a launcher prints."""
WAIT = 1200
"""Seconds after which a job hangs, on a busy machine, too."""


@pytest.fixture(autouse=True)
def _no_job_is_left():
    yield
    end_jobs()


def write(folder: Path, *options: str, name: str = "job.sbatch") -> Path:
    """Writes a job script and returns it, after checking that it is valid shell."""
    script = folder / name
    given = ["--time", "4:00:00", "--activate", "", "--output", str(script), "--overwrite", *options]
    assert run_command("slurm", *CONFIG, *given) == 0
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    return script


def run(folder: Path, script: Path, job: int = 45123, task: int | None = None, **others: str) -> tuple[int, list[str]]:
    """Runs a job with programs in place of others, and returns its exit code and output."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    code = submit(script, job, log, programs(folder, **others), task).wait(WAIT)
    return code, log.read_text().splitlines()


def requeued(folder: Path) -> list[str]:
    return (folder / REQUEUED).read_text().split() if (folder / REQUEUED).exists() else []


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("code", "queue"), [(0, []), (2, []), (1, []), (143, ["45123"])], ids=["finished", "wrong", "failed", "stopped"]
)
def test_the_job_ends_as_its_run_and_returns_to_the_queue_when_it_was_stopped(code, queue, tmp_path):
    ended, _ = run(tmp_path, write(tmp_path, "--gpus", "0"), toolkit=f"{SAVE}; exit {code}")
    assert (ended, requeued(tmp_path)) == (0 if queue else code, queue)


def test_each_process_is_a_task(tmp_path, monkeypatch):
    script = write(tmp_path, "--nodes", "2", "--gpus", "2", "--cpus", "3", "train.max_steps=7")
    code, said = run(tmp_path, script, toolkit=ECHO)
    assert said == [f"127.0.0.1:15123 3  train {' '.join(CONFIG)} train.max_steps=7 checkpoint.resume=auto"] * 4
    assert code == 0
    ports = 'echo "$MASTER_PORT"'
    assert run(tmp_path, script, toolkit=ports)[1] == ["15123"] * 4
    monkeypatch.setenv("MASTER_PORT", "29501")  # which sbatch hands on to the job
    assert run(tmp_path, script, toolkit=ports)[1] == ["29501"] * 4


@pytest.mark.fast(1)
@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_signal_reaches_the_run_and_the_job_waits_for_it(code, tmp_path):
    script = write(tmp_path, "--gpus", "0")
    job = started(script, tmp_path, toolkit=SAVES % code)
    warn(job, script)
    job.wait(WAIT)
    assert (tmp_path / "log").read_text().split() == ["ready", "saved"]
    # Launchers end with 1 after a stop; a run that has finished, or is wrong, must not run again.
    assert (job.returncode, requeued(tmp_path)) == ((code, []) if code in (0, 2) else (0, ["7"]))


def started(script: Path, folder: Path, task: int | None = None, **others: str) -> subprocess.Popen:
    """Starts job 7 with programs in place of others, and returns it once they have printed `ready`."""
    log = folder / "log"
    job = submit(script, 7, log, programs(folder, **others), task)
    while "ready" not in log.read_text():
        assert job.poll() is None, log.read_text()
        time.sleep(0.05)
    return job


def test_of_an_array_one_task_is_stopped_and_returns_to_the_queue(tmp_path):
    script = write(tmp_path, "--gpus", "0", "--array", "2", "--launcher", "torchrun")
    job = started(script, tmp_path, task=2, torchrun=SAVES % 1)
    warn(job, script)
    assert job.wait(WAIT) == 0
    assert requeued(tmp_path) == ["7_2"]


def test_a_job_that_is_cancelled_does_not_return_to_the_queue(tmp_path):
    script = write(tmp_path, "--gpus", "0")
    job = started(script, tmp_path, toolkit=SAVES % 143)
    cancel(job, script, "7")
    assert job.wait(WAIT) == 143
    assert (tmp_path / "log").read_text().split() == ["ready", "saved"]
    assert not requeued(tmp_path)


def test_a_run_that_saves_nothing_does_not_return_to_the_queue_for_ever(tmp_path):
    script = write(tmp_path, "--gpus", "0")
    assert run(tmp_path, script, toolkit=f"{SAVE}; exit 143")[0] == 0
    code, said = run(tmp_path, script, toolkit="exit 143")
    assert (code, requeued(tmp_path)) == (143, ["45123"])
    assert said[0].startswith("No checkpoint was written, so the job does not return to the queue")


def test_a_job_that_cannot_return_to_the_queue_fails(tmp_path):
    no_queue = '[ "$1" = show ] && echo 127.0.0.1'
    assert run(tmp_path, write(tmp_path, "--gpus", "0"), toolkit=f"{SAVE}; exit 143", scontrol=no_queue)[0] == 143


def test_each_machine_is_checked_first(tmp_path):
    script = write(tmp_path, "--nodes", "2", "--gpus", "2", "--preflight")
    code, said = run(tmp_path, script, toolkit='echo "$1" "${@: -2}"')
    check, run_of = "preflight --processes 2", f"train {CONFIG[-1]} checkpoint.resume=auto"
    assert (code, said) == (0, [check] * 2 + [run_of] * 4)
    code, said = run(tmp_path, script, toolkit='echo "$1"; [ "$1" = train ] || exit 2')
    assert (code, set(said), requeued(tmp_path)) == (2, {"preflight"}, [])


@pytest.mark.slow
def test_a_job_that_returns_and_the_next_one_of_an_array_pass_the_check(tmp_path):
    few = ["train.max_steps=2", "checkpoint.save_steps=1", f"output_dir={tmp_path}/runs"]
    script = write(tmp_path, "--gpus", "0", "--preflight", "--array", "2", *few)
    for number, task in enumerate((1, 1, 2)):
        log = tmp_path / f"log-{number}"
        assert submit(script, 7, log, programs(tmp_path), task).wait(WAIT) == 0, log.read_text()
        assert "this machine can start the run" in log.read_text()
        programs(tmp_path, toolkit=f'[ "$1" = train ] || exec {sys.executable} -m toolkit "$@"')  # trains no more
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-42"}


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "accelerate"])
def test_spaces_and_quotes_arrive_as_they_were_given(launcher, tmp_path):
    words, file = ["my recipe.py", """data.columns.text=Ann's  "own" $text"""], "my env/multi_node.yaml"
    machine = {"nodes": 1, "gpus": 1, "cpus": 1, "seconds": 3600, "lead": 60, "output_dir": "my runs"}
    job = Job(["toolkit"], "train", words, "my job", **machine, launcher=launcher, multi_node=file, activate="")
    (tmp_path / "job.sbatch").write_text(text_of(job))
    assert options_of(tmp_path / "job.sbatch")["job-name"] == "'my job'"  # as sbatch reads it
    prints = 'printf "%s\\n" "$@"'
    code, said = run(tmp_path, tmp_path / "job.sbatch", toolkit=prints, torchrun=prints, accelerate=prints)
    assert code == 0
    assert set(said) >= {*words, "checkpoint.resume=auto"}
    assert (file in said) == (launcher == "accelerate")
    assert ("c10d" in said) == (launcher == "torchrun")  # accelerate would use one port for it on every machine


def test_what_the_job_asks_for_follows_from_the_settings(tmp_path):
    asked = options_of(write(tmp_path, "--nodes", "2", "--gpus", "4", "--partition", "gpu", "--account", "lab"))
    assert {name: asked[name] for name in ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time")} == {
        "nodes": "2", "ntasks-per-node": "4", "gpus-per-node": "4", "cpus-per-task": "2", "time": "04:00:00"
    }  # fmt: skip
    assert (asked["partition"], asked["account"], asked["signal"]) == ("gpu", "lab", "B:USR1@720")
    workers = options_of(write(tmp_path, "--gpus", "2", "train.dataloader_num_workers=5"))
    assert (workers["cpus-per-task"], workers["ntasks-per-node"]) == ("7", "2")
    rows = options_of(write(tmp_path, "--gpus", "2", "data.preprocessing_num_workers=32"))
    assert rows["cpus-per-task"] == "16"
    one = options_of(write(tmp_path, "--gpus", "4", "--launcher", "torchrun", "--lead", "60"))
    assert (one["ntasks-per-node"], one["cpus-per-task"], one["signal"]) == ("1", "8", "B:USR1@60")
    assert "gpus-per-node" not in options_of(write(tmp_path, "--gpus", "0"))


def test_options_of_centres_are_passed_on(tmp_path):
    given = ("--gpus", "4", "--gres", "gpu:a100:4", "--sbatch", "--hint=nomultithread", "--sbatch", "comment=a b")
    script = write(tmp_path, *given, "--cpu-bind", "cores", "--master-address", "-ib0")
    asked = options_of(script)
    assert (asked["gres"], asked["hint"], asked["comment"]) == ("gpu:a100:4", "nomultithread", "'a b'")
    assert "gpus-per-node" not in asked
    text = script.read_text()
    assert '"$SLURM_CPUS_PER_TASK" --cpu-bind=cores --kill-on-bad-exit=1' in text
    code, log = run(tmp_path, script, toolkit=ECHO)
    assert (code, log[0].partition(":")[0]) == (0, "127.0.0.1-ib0")
    command = """printf '%s' "$MASTER_ADDR.cluster" | tr a-z A-Z"""
    code, log = run(tmp_path, write(tmp_path, "--master-address", command), toolkit=ECHO)
    assert (code, log[0].partition(":")[0]) == (0, "127.0.0.1.CLUSTER")
    assert "gpus-per-node" in options_of(write(tmp_path, "--gpus", "2", "--gres", "lustre:1"))


def test_torchrun_and_accelerate_meet_at_the_first_machine(tmp_path):
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    machines = ["--nodes", "2", "--gpus", "4", "--interface", "ib0"]
    script = write(tmp_path, *machines, "--launcher", "torchrun")
    code, said = run(tmp_path, script, torchrun=f'{ECHO} "$NCCL_SOCKET_IFNAME"')
    assert (code, len(said)) == (0, 2)
    for line, is_host in zip(sorted(said), ("false", "true"), strict=True):
        place, threads, timeout, *words, interface = line.split(" ")
        assert (place, threads, timeout, interface) == ("127.0.0.1:15123", "2", "700", "ib0")
        options = get_args_parser().parse_args(words)
        assert (options.nnodes, options.nproc_per_node, options.rdzv_backend) == ("2", "4", "c10d")
        assert (options.rdzv_id, options.rdzv_endpoint, options.rdzv_conf) == ("45123", place, f"is_host={is_host}")
        assert (options.module, options.training_script) == (True, "toolkit")
        assert options.training_script_args == ["train", *CONFIG, "checkpoint.resume=auto"]
    script = write(tmp_path, *machines, "--launcher", "accelerate")
    code, said = run(tmp_path, script, accelerate=ECHO)
    ranks = set()
    for line in said:
        _, _, timeout, launch, *words = line.split(" ")
        options = launch_command_parser().parse_args(words)
        assert (timeout, launch, Path(options.config_file).name) == ("700", "launch", "multi_node.yaml")
        assert (options.num_machines, options.num_processes, options.main_process_port) == (2, 8, 15123)
        is_host = f"is_host={str(options.machine_rank == 0).lower()}"
        assert (options.rdzv_backend, options.rdzv_conf) == ("c10d", is_host)
        assert options.training_script_args == ["train", *CONFIG, "checkpoint.resume=auto"]
        ranks.add(options.machine_rank)
    assert ranks == {0, 1}


def test_the_tasks_of_an_array_are_seeds(tmp_path):
    script = write(tmp_path, "--gpus", "0", "--array", "3", "output_dir=my runs")
    assert options_of(script)["array"] == "1-3"  # Slurm limits the index, which seeds may exceed
    _, (said,) = run(tmp_path, script, task=2, toolkit=ECHO)
    assert said.endswith("checkpoint.resume=auto seed=43 output_dir=my runs/seed-43")


def test_the_tasks_of_an_array_share_a_comparison_or_a_search(tmp_path):
    script = write(tmp_path, "--gpus", "2", "--compare", "--preset memory --seeds 2", "--array", "4")
    assert options_of(script)["array"] == "1-4"
    _, (said,) = run(tmp_path, script, task=3, toolkit='echo "$*"')
    assert said == f"compare {' '.join(CONFIG)} --preset memory --seeds 2 --processes 2 --part 3/4"
    (tmp_path / "space.yaml").write_text("train.learning_rate: [1e-3, 1e-4]\n")
    script = write(tmp_path, "--gpus", "1", "--search", "--space space.yaml", "--array", "4")
    _, (said,) = run(tmp_path, script, task=3, toolkit='echo "$*"')
    assert said == f"search {' '.join(CONFIG)} --space space.yaml --processes 1 --time 03:48:00"
    assert not requeued(tmp_path)


def test_a_stopped_share_goes_on(tmp_path):
    script = write(tmp_path, "--gpus", "0", "--compare", "--preset memory", "--array", "2")
    waits = "trap 'echo saved; exit 130' INT\necho ready\nwhile true; do sleep .1; done"
    job = started(script, tmp_path, task=1, toolkit=waits)
    warn(job, script)
    assert job.wait(WAIT) == 0
    assert (requeued(tmp_path), (tmp_path / "log").read_text().split()) == (["7_1"], ["ready", "saved"])


@pytest.mark.fast(6)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time", "soon"], "--time: received soon, must be a time such as 4:00:00"),
        (["--lead", "9000"], "--lead: the signal would come 9000 s before the end of 14400 s"),
        (["--lead", "10"], "--lead: received 10, must be a whole number of at least 30"),
        (["--compare", "--preset memory", "--nodes", "2"], "--nodes: compare trains on one machine; share the work"),
        (["--search", "--space s.yaml --time 1:00:00"], "--search: --time is set by the job script; remove it"),
        (["--compare", "--preset no-such"], "argument --preset: invalid choice: 'no-such'"),
        (["checkpoint.resume=none"], "checkpoint.resume: is set by the job script, to auto"),
        (["--array", "2", "seed=3"], "--array: gives each task a seed"),
        (["--launcher", "accelerate", "--gpus", "0"], "use srun or torchrun with --gpus 0"),
        (["--gpus", "3", "parallel.tensor=2"], "parallel"),
        (["--gres", "gpu:4"], "--gres: received gpu:4, but --gpus is 1"),
        (["--sbatch", "-C gpu"], "--sbatch: received '-C gpu', must be a long option"),
        (["--sbatch", "time=1:00"], "--sbatch: received 'time=1:00', but the script sets time"),
        (["--master-address", "$(x)"], "--master-address: received $(x), must be a suffix"),
        (["--compare", "--preset memory", "--master-address", "i"], "--master-address: has no effect with --compare"),
        (["train.max_step=3"], "did you mean train.max_steps?"),
    ],
)
def test_what_cannot_work_is_rejected(options, message, tmp_path, capsys):
    given = ["--time", "4:00:00", "--output", str(tmp_path / "job.sbatch"), *options]
    assert run_command("slurm", *CONFIG, *given) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "job.sbatch").exists()


def test_times_are_those_of_slurm():
    seconds = {"90": 5400, "1:30": 90, "4:00:00": 14400, "1-0": 86400, "1-2:03": 93780, "2-00:00:01": 172801}
    assert {text: seconds_of(text) for text in seconds} == seconds
    assert [shown_time(each) for each in (90, 14400, 93780)] == ["00:01:30", "04:00:00", "1-02:03:00"]
    assert [lead_of(each) for each in (600, 14400, 172800)] == [180, 720, 900]
    for wrong in ("", "0", "four hours", "1:2:3:4"):
        with pytest.raises(InputError, match="--time"):
            seconds_of(wrong)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_two_machines_stop_at_the_signal_and_go_on_bit_for_bit(launcher, tmp_path):
    """Two jobs share the machine; one is stopped by the scheduler and requeued, and both end with the same weights."""
    lead, step = 300, '"step": 2,'
    bin_folder, scripts, jobs = programs(tmp_path), {}, {}
    few = ["train.max_steps=60", "tracking.logging_steps=1", "checkpoint.save_steps=1000", "eval.eval_steps=null"]
    few += ["train.global_batch_size=4", "train.per_device_train_batch_size=2", "data.max_eval_samples=8"]
    few += ["model.from_config.hidden_size=32", "model.from_config.intermediate_size=48"]
    machines = ["--nodes", "2", "--gpus", "1", "--cpus", "1", "--launcher", launcher]
    for name in ("one", "stopped"):
        options = [*machines, "--time", "15:00", "--lead", str(lead)]
        scripts[name] = write(tmp_path, *options, *few, f"output_dir={tmp_path}/{name}", name=f"{name}.sbatch")
    numbers = dict(zip(scripts, free_jobs(2), strict=True))
    for name, script in scripts.items():
        jobs[name] = submit(script, numbers[name], tmp_path / f"{name}.log", bin_folder)
    metrics = tmp_path / "stopped/metrics.jsonl"
    while not (metrics.exists() and step in metrics.read_text()):
        assert jobs["stopped"].poll() is None, (tmp_path / "stopped.log").read_text()
        time.sleep(0.05)
    warn(jobs["stopped"], scripts["stopped"])
    assert jobs["stopped"].wait(lead) == 0
    assert requeued(tmp_path) == [str(numbers["stopped"])], (tmp_path / "stopped.log").read_text()
    assert not (tmp_path / "stopped/model").exists()
    assert submit(scripts["stopped"], numbers["stopped"], tmp_path / "stopped.log", bin_folder).wait(WAIT) == 0
    assert jobs["one"].wait(WAIT) == 0, (tmp_path / "one.log").read_text()
    assert requeued(tmp_path) == [str(numbers["stopped"])]
    assert_same_weights(tmp_path / "one", tmp_path / "stopped")


@pytest.mark.slow
def test_the_last_part_writes_the_comparison(tmp_path):
    import json

    switch = f"--switch train.learning_rate=1e-3,1e-4 --seeds 1 --steps 2 --draws 0 --output {tmp_path}/compared"
    script = write(tmp_path, "--gpus", "0", "--compare", switch, "--array", "2")
    code, said = run_part(tmp_path, script, 1)
    assert code == 0
    assert "not finished: 1 run of the comparison (0 of this part failed)" in said
    assert not (tmp_path / "compared/comparison.json").exists()
    code, said = run_part(tmp_path, script, 2)
    assert code == 0
    found = json.loads((tmp_path / "compared/comparison.json").read_text())
    assert [variant["runs"] for variant in found["variants"]] == [1, 1]


def run_part(folder: Path, script: Path, part: int) -> tuple[int, str]:
    log = folder / f"part-{part}.log"
    code = submit(script, part, log, programs(folder), task=part).wait(WAIT)
    return code, log.read_text()
