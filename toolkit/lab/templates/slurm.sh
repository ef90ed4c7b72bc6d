#!/bin/bash
# Written by: {{ written_by }}
#
{% if train %}
# {{ job.lead }} s before the time limit, Slurm signals this script. The run then saves a
# checkpoint, and the job returns to the queue, as it does after a preemption or the
# failure of a machine. It resumes from the newest checkpoint.
{% else %}
# The tasks of an array share the work. A task whose time is over returns to the queue, and
# goes on with what is left.
{% endif %}
# A job that is cancelled (scancel) does not return.

{% for option in options %}
#SBATCH --{{ option }}
{% endfor %}

cd "$SLURM_SUBMIT_DIR" || exit 2
{% if job.activate %}
{{ job.activate }} || exit 2
{% endif %}
{% if job.offline %}
export HF_HUB_OFFLINE=1 # compute nodes have no internet
{% for tracker in job.trackers if tracker == "wandb" %}
export WANDB_MODE=offline
{% endfor %}
{% endif %}
{% if job.by_task or job.per_node == 1 %}
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
{% else %}
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / {{ job.per_node }}))
{% endif %}
{% if job.interface %}
export NCCL_SOCKET_IFNAME={{ job.interface | quote }} GLOO_SOCKET_IFNAME={{ job.interface | quote }}
{% endif %}
{% if train %}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
{% if job.master_address and " " in job.master_address %}
MASTER_ADDR=$({{ job.master_address }}) || exit 2
{% elif job.master_address %}
MASTER_ADDR=$MASTER_ADDR{{ job.master_address }}
{% endif %}
# Jobs on one machine have different ports; a port that is set goes first.
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-$(({{ first_port }} + SLURM_JOB_ID % {{ ports }}))}
{% if not job.by_task %}
# Otherwise the launcher kills its processes 30 s after the signal.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={{ job.lead - spare_seconds }}
{% endif %}
{% endif %}
{% if not job.staged %}
# To copy the data to each machine first, add data.stage_to=/dev/shm/... or a folder on its own disk.
{% endif %}

{% if train %}
settings=(checkpoint.resume=auto)
output={{ job.output_dir | quote }}
{% if job.seed is not none %}
seed=$(({{ job.seed - 1 }} + SLURM_ARRAY_TASK_ID))
output=$output/seed-$seed
settings+=("seed=$seed" "output_dir=$output")
{% endif %}
{% if job.preflight %}
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    toolkit preflight {{ words }} "${settings[@]}" --processes {{ job.per_node }} || exit 2
{% endif %}
newest() { ls -t "$output/checkpoints" 2> /dev/null | head -n 1; }
before=$(newest)
{% endif %}
job={{ "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" if job.array else "$SLURM_JOB_ID" }}
stopped= cancelled=
{% if train %}
# srun kills its processes when it receives SIGTERM; scancel sends SIGTERM to the processes.
trap 'stopped=1; scancel --signal=TERM "$job"' USR1
trap 'cancelled=1' TERM
{% if job.launcher == "srun" %}
srun --cpus-per-task="$SLURM_CPUS_PER_TASK"{{ bound }} --kill-on-bad-exit=1 \
    toolkit train {{ words }} "${settings[@]}" &
{% else %}
on_each_machine={{ on_each_machine | quote }}
srun --cpus-per-task="$SLURM_CPUS_PER_TASK"{{ bound }} --kill-on-bad-exit=1 bash -c "$on_each_machine" toolkit \
    {{ words }} "${settings[@]}" &
{% endif %}
run=$!
{% else %}
run= told=
set -m # the run gets a group of its own, to which the signal is sent once
tell() { [ -z "$run" ] || [ -n "$told" ] || { told=1; kill -INT -- "-$run"; }; }
trap 'stopped=1; tell' USR1
trap 'cancelled=1; tell' TERM
toolkit {{ job.work }} {{ words }} {{ share }}&
run=$!
[ -z "$stopped$cancelled" ] || tell # a signal that came before there was a run
{% endif %}
while kill -0 "$run" 2> /dev/null; do # a signal ends the wait, but the run is still saving
    wait "$run"
done
wait "$run"
code=$?
{% if job.work == "search" %}
{# After its own time, a search ends with 0, and its trials have saved. #}
if [ -z "$cancelled" ] && { { [ -n "$stopped" ] && [ "$code" -ne 2 ]; } || [ "$SECONDS" -ge {{ job.seconds - job.lead }} ]; }; then
{% else %}
if [ -z "$cancelled" ] && { [ "$code" -eq 143 ] || { [ -n "$stopped" ] && [ "$code" -ne 0 ] && [ "$code" -ne 2 ]; }; }; then
{% endif %}
{% if train %}
{# Otherwise a run that is too slow to save would return for ever. #}
    if [ "$(newest)" = "$before" ]; then
        echo "No checkpoint was written, so the job does not return to the queue: use a longer" \
            "--time or --lead, or save more often (checkpoint.save_steps)." >&2
        exit "$code"
    fi
{% endif %}
    scontrol requeue "$job" && exit 0
fi
exit "$code"
