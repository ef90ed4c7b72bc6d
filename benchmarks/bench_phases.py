"""What measuring the phases of a step costs: training with the measurement, against the same training without it.

    python benchmarks/bench_phases.py [--pairs 9] [--cpu-time]

The side without it replaces, in its own process, what begins and ends a phase. The seconds are those of the median
step. The target is a ratio of at least 0.99: at most 1 % of a step.
"""

from __future__ import annotations

from bench_guards import measure
from pairs import parser, read_options

if __name__ == "__main__":
    measure(
        "phases",
        "a step whose phases are not measured, against the same step with the measurement",
        read_options(parser(__doc__, pairs=9)),
    )
