# One image for every part: nodes, Spark ingest, and the command line.
FROM python:3.11-slim-bookworm

# Java runs Spark and fetches the jars; procps is what Spark's own scripts look for.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    XDG_CACHE_HOME=/opt/headrace/cache

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
    && python -c "from headrace.connectors.kafka.jars import resolve_jars; resolve_jars(progress=print)" \
    && python -c "import headrace.connectors.formats.kernel"

RUN useradd --uid 10001 --create-home headrace \
    && install --directory --owner headrace /var/lib/headrace
USER headrace
WORKDIR /var/lib/headrace
VOLUME /var/lib/headrace

EXPOSE 8080
ENTRYPOINT ["headrace"]
CMD ["--help"]
