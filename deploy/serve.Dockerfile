# syntax=docker/dockerfile:1
# An image that serves one finished run; docs/deploy.md shows how it is used. The build context is the run's folder.
#
#   docker build --file deploy/serve.Dockerfile --tag my-reviews outputs/my-reviews
#   docker run --rm --publish 127.0.0.1:8000:8000 my-reviews
#
# hadolint global ignore=DL3006

ARG BASE=finetune-toolkit:cpu
FROM ${BASE}
WORKDIR /srv/run
# All that is read: the settings, the run's facts with its checksums, and the model with its processor.
COPY config.yaml run.json ./
COPY model model
ENV HF_HUB_OFFLINE=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
CMD ["serve", "/srv/run", "--host", "0.0.0.0", "--port", "8000"]
