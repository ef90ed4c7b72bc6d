# syntax=docker/dockerfile:1
# Two images with `toolkit` as their program; docs/deploy.md shows how they are used.
#
#   docker build --target cpu --tag finetune-toolkit:cpu .
#   docker build --target cuda --tag finetune-toolkit:cuda .
#
# What changes rarely comes first: a change of the code rebuilds only the last, small layer. Hadolint would pin Debian's
# packages, of which old versions vanish, join those layers, and quote the list of extras.
# hadolint global ignore=DL3008,DL3059,SC2086

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS base
# g++ compiles for train.torch_compile; tini hands signals on and reaps processes, which the first process must do.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*
# The home is the working folder, so that a volume mounted there keeps caches and outputs. Home and name are variables,
# too, for `docker run --user` with a user that the image does not know.
RUN useradd --uid 1000 --create-home --home-dir /workspace toolkit
ENV HOME=/workspace \
    LOGNAME=toolkit \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONUNBUFFERED=1
WORKDIR /workspace
ENTRYPOINT ["tini", "--", "toolkit"]
CMD ["--help"]

# The requirements of the toolkit and of some extras (pyproject.toml), without the toolkit.
FROM base AS requirements
ARG EXTRAS="peft optimizers excel serve"
WORKDIR /build
COPY pyproject.toml constraints.txt deploy/requirements.py ./
RUN python requirements.py ${EXTRAS} > requirements.txt

FROM base AS wheel
WORKDIR /build
COPY constraints.txt ./
RUN pip install --constraint constraints.txt setuptools
COPY pyproject.toml setup.py README.md LICENSE ./
COPY toolkit toolkit
COPY recipes recipes
COPY accelerate_configs accelerate_configs
RUN pip wheel --no-deps --no-build-isolation --wheel-dir dist .

# torch from PyPI brings CUDA's libraries; the driver is that of the machine.
FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=bind,from=requirements,source=/build,target=/build \
    pip install --constraint /build/constraints.txt torch
RUN --mount=type=bind,from=requirements,source=/build,target=/build \
    pip install --constraint /build/constraints.txt --requirement /build/requirements.txt
RUN --mount=type=bind,from=wheel,source=/build/dist,target=/dist \
    pip install --no-deps /dist/*.whl
USER 1000:1000

FROM base AS cpu
RUN --mount=type=bind,from=requirements,source=/build,target=/build \
    pip install --constraint /build/constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch
RUN --mount=type=bind,from=requirements,source=/build,target=/build \
    pip install --constraint /build/constraints.txt --requirement /build/requirements.txt
RUN --mount=type=bind,from=wheel,source=/build/dist,target=/dist \
    pip install --no-deps /dist/*.whl
USER 1000:1000
