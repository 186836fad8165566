# One image for every part: nodes, Spark ingest, and the command line.
FROM python:3.11-slim-bookworm

# Java runs Spark and fetches the jars; procps is what Spark's own scripts look for.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    XDG_CACHE_HOME=/opt/headrace/cache \
    NUMBA_CACHE_DIR=/opt/headrace/kernels

WORKDIR /opt/headrace/source
COPY pyproject.toml constraints.txt README.md pyspark_headrace.py ./
COPY schemas schemas
COPY connectors connectors
COPY producers producers
COPY consumers consumers
COPY pipeline pipeline
COPY headrace headrace
RUN pip install --constraint constraints.txt . \
    && cd / \
    && python -c "from headrace.connectors.kafka.jars import resolve_jars; resolve_jars(progress=print)"

RUN useradd --uid 10001 --create-home headrace \
    && install --directory --owner headrace /var/lib/headrace /opt/headrace/kernels
USER headrace
WORKDIR /var/lib/headrace
# By the user of the image: Numba has a cache that it may write to, or none, and each process compiles for 20 s.
RUN for kernel in kernel avro_kernel json_path_kernel json_document_kernel; do \
        python -c "import headrace.connectors.formats.$kernel" || exit 1; \
    done
VOLUME /var/lib/headrace

EXPOSE 8080
ENTRYPOINT ["headrace"]
CMD ["--help"]
