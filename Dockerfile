# syntax=docker/dockerfile:1
# Two images, both from the versions in constraints.txt:
#   docker build --target runtime -t agent-forge .          plan, run, trace, serve; no torch
#   docker build --target forge -t agent-forge:forge .      and make models, with torch for CPUs
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
RUN PIP_CONSTRAINT=constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm AS runtime
# bubblewrap isolates code that a model wrote; without it such code is refused
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 forge \
    && install -d -o forge -g forge /data
COPY constraints.txt /constraints.txt
COPY --from=wheel /wheels /wheels
RUN set -- /wheels/*.whl && pip install --no-cache-dir -c /constraints.txt "$1[server,scale,otel,mcp]"
USER 10001
ENV AGENT_FORGE_HOME=/data
VOLUME /data
EXPOSE 8321
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8321/healthz', timeout=4)"]
ENTRYPOINT ["agent-forge"]
# it listens beyond loopback, so it asks for AGENT_FORGE_TOKEN; without one it makes one and prints it
CMD ["serve", "--host", "0.0.0.0"]

FROM runtime AS forge
USER 0
# torch from PyTorch's own index has no CUDA in it: 1 GB instead of 6
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c /constraints.txt --index-url "${TORCH_INDEX}" torch
RUN set -- /wheels/*.whl && pip install --no-cache-dir -c /constraints.txt "$1[data,forge]"
USER 10001
